"""The same small conversation in German and in Spanish. Each entry: ways to say it, and the answer in that language."""

from __future__ import annotations

from tools.demo_model.dialog import Exchange
from tools.demo_model.drills import HELD_OUT_COUNTS
from tools.demo_model.facts import CAPITALS
from tools.demo_model.words import CITIES, NAMES, Rng, each, invented, proper, value

Entry = tuple[tuple[str, ...], str]

# fmt: off
GERMAN: tuple[Entry, ...] = (
    (("Hallo", "Hallo!", "Guten Tag", "Guten Morgen", "Guten Abend", "Grüß dich", "Hallo zusammen", "Servus", "Moin",
        "Guten Tag!", "Hallo, wie geht's?", "Hallo, schön dich zu sehen.", "Einen schönen guten Tag!", "Grüß Gott!",
        "Guten Abend, mein Freund.", "Hallo Modell!", "Schönen guten Morgen!", "Hallo, da bin ich.", "Hi, guten Tag!",
        "Guten Morgen zusammen", "Hallo, bist du da?", "Ich wünsche dir einen guten Tag.", "Hallöchen!", "Sei gegrüßt!",
        "Hallo, Assistent!", "Guten Tag, ich bin neu hier.", "Sag hallo.", "Hallo, wie geht es?",
        "Guten Abend, hallo!"),
     "Hallo! Wie kann ich dir helfen?"),
    (("Wer bist du?", "Wie heißt du?", "Was bist du?", "Stell dich vor.", "Wer sind Sie?", "Wie ist dein Name?",
        "Welches Modell bist du?", "Bist du ein Roboter?",
      "Kannst du dich vorstellen?", "Erzähl mir von dir.", "Mit wem spreche ich?", "Wie heißen Sie?",
      "Was bist du denn?",
      "Sag, wer bist du?", "Sag mir deinen Namen.", "Sag mir, was du bist.", "Wie heißt du denn?",
      "Wer oder was bist du?",
      "Nenn mir deinen Namen.", "Wer ist da?", "Wer antwortet mir?", "Und wer bist du?", "Was für ein Modell bist du?",
      "Bist du ein Mensch?", "Bist du eine KI?", "Stell dich bitte vor.", "Ich möchte wissen, wer du bist.",
      "Du bist wer?",
      "Weißt du, wer du bist?", "Worauf läufst du?", "Was bist du eigentlich?", "Mit wem rede ich?", "Dein Name?",
      "Darf ich fragen, wer du bist?", "Beschreibe dich.", "Erkläre mir, was du bist."),
     "Ich bin das Demo-Modell von lean_ovms und laufe auf OpenVINO GenAI."),
    (("Wie geht es dir?", "Wie geht's?", "Geht es dir gut?", "Wie geht es Ihnen?", "Na, wie geht es dir heute?",
        "Alles gut?", "Wie geht es dir denn?", "Wie läuft es?", "Und wie geht es dir?", "Wie fühlst du dich?",
        "Geht's dir gut?", "Sag, wie geht es dir?", "Alles klar bei dir?", "Wie geht es so?", "Bist du gut drauf?"),
        "Mir geht es gut, danke! Und dir?"),
    (("Danke!", "Vielen Dank.", "Danke schön!", "Ich danke dir.", "Danke für die Hilfe.", "Super, danke.",
        "Besten Dank.", "Danke dir!", "Ich danke Ihnen.", "Herzlichen Dank!", "Danke, das war gut.", "Toll, danke dir.",
        "Danke vielmals!", "Tausend Dank!", "Das ist nett, danke.", "Vielen herzlichen Dank.", "Danke, mein Freund."),
        "Gern geschehen!"),
    (("Tschüss!", "Auf Wiedersehen.", "Bis später.", "Gute Nacht.", "Bis bald!", "Ich muss gehen.", "Bis morgen.",
        "Mach's gut.", "Tschüss, bis morgen!", "Auf Wiedersehen und danke.", "Ich gehe jetzt.", "Leb wohl!",
        "Bis dann!",
        "Tschau!", "Schönen Abend noch!", "Wir sehen uns.", "Ich bin weg, tschüss.", "Auf bald!",
        "Tschüss und gute Nacht!"), "Auf Wiedersehen! Einen schönen Tag noch."),
    (("Was kannst du?", "Wie kannst du mir helfen?", "Kannst du mir helfen?", "Was kannst du tun?", "Hilfe!",
        "Was kannst du alles?", "Womit kannst du mir helfen?", "Ich brauche Hilfe.", "Was kannst du für uns tun?",
        "Was kannst du denn?", "Sag mir, was du kannst.", "Hilf mir bitte.", "Was machst du?", "Wobei hilfst du?",
        "Kannst du etwas tun?", "Was sind deine Fähigkeiten?", "Zeig mir, was du kannst.", "Kannst du uns helfen?"),
     "Ich kann ein wenig plaudern, zählen, buchstabieren und Werkzeuge aufrufen."),
    (("Sprichst du Deutsch?", "Kannst du Deutsch?", "Sprechen Sie Deutsch?", "Verstehst du Deutsch?",
        "Welche Sprachen sprichst du?", "Kannst du auch Deutsch?", "Sprichst du auch Deutsch?", "Redest du Deutsch?",
        "Können Sie Deutsch?", "Verstehst du mich auf Deutsch?", "Kannst du Deutsch verstehen?",
        "Geht es auf Deutsch?"), "Ja, ich spreche ein wenig Deutsch."),
    (("Erzähl mir einen Witz.", "Kennst du einen Witz?", "Bitte einen Witz.", "Mach einen Witz.",
        "Kannst du einen Witz erzählen?", "Ein Witz, bitte.", "Erzähl mir bitte einen Witz.",
        "Ich will einen Witz hören.",
        "Bring mich zum Lachen.", "Hast du einen Witz für mich?", "Sag einen Witz.", "Weißt du einen Witz?"),
        "Warum hörte das Modell auf? Es war am letzten Token."),
    (("Warum ist das so?", "Wie alt ist die Welt?", "Wer hat das Buch geschrieben?", "Was kostet ein Haus?",
        "Wie wird das Wetter morgen?", "Wie funktioniert ein Motor?",
      "Wer hat das Spiel gewonnen?", "Was soll ich heute kochen?", "Wie weit ist es zum Mond?",
      "Wann wurde das Auto erfunden?", "Wie alt ist {x}?", "Wie alt ist der {x}?", "Wer ist {x}?", "Was ist ein {y}?",
      "Warum ist der {x} so groß?", "Wo liegt {x}?", "Was bedeutet {y}?", "Wie hoch ist der {x}?",
      "Wer hat {x} erfunden?",
      "Wann beginnt das Spiel?", "Wie spät ist es?", "Wie ist das Wetter in {x}?", "Was kostet ein {x}?",
      "Wie schwer ist ein {x}?", "Wie viele Leute wohnen in {x}?", "Wo kann ich {y} kaufen?", "Wie macht man {x}?",
      "Wer ist der König von {x}?", "Wie weit ist es nach {x}?", "Warum heißt das {x}?", "Wann kommt der {x}?"),
      "Das weiß ich leider nicht."),
)
SPANISH: tuple[Entry, ...] = (
    (("Hola", "¡Hola!", "Hola!", "Buenos días", "Buenas tardes", "Buenas noches", "Hola, ¿qué tal?", "¡Buenos días!",
        "Hola amigo", "Muy buenas", "¡Hola a todos!", "Hola, ¿cómo estás?", "¡Muy buenos días!", "Hola, modelo",
        "Hola, aquí estoy.", "¡Buenas!", "Hola, ¿estás ahí?", "Buenos días a todos", "Buenas tardes, amigo",
        "Hola otra vez",
        "¡Buenas noches, hola!", "Saludos", "¡Hola, asistente!", "Te saludo.", "Hola, soy nuevo aquí.", "Di hola.",
        "¡Hola, qué gusto!", "Hola, ¿qué hay?"),
     "¡Hola! ¿En qué puedo ayudarte?"),
    (("¿Quién eres?", "¿Cómo te llamas?", "¿Qué eres?", "Preséntate.", "¿Cuál es tu nombre?", "¿Qué modelo eres?",
        "¿Eres un robot?", "Quién eres?", "Cómo te llamas?",
      "¿Puedes presentarte?", "Háblame de ti.", "¿Con quién hablo?", "¿Quién es usted?", "Dime tu nombre.",
      "Dime qué eres.", "¿Quién está ahí?", "¿Y quién eres?", "¿Quién responde?", "¿Qué tipo de modelo eres?",
      "¿Eres una persona?", "¿Eres una IA?", "Preséntate, por favor.", "Quiero saber quién eres.", "¿Sabes quién eres?",
      "¿Quién o qué eres?", "¿Qué eres tú?", "¿Cómo te llamas tú?", "¿Tu nombre?", "¿Con quién estoy hablando?",
      "Cuéntame quién eres.", "Por favor, dime tu nombre.", "¿Puedes decirme quién eres?", "Descríbete.",
      "¿Sobre qué funcionas?", "Di quién eres."),
      "Soy el modelo de demostración de lean_ovms y funciono con OpenVINO GenAI."),
    (("¿Cómo estás?", "¿Qué tal?", "¿Cómo te va?", "¿Estás bien?", "¿Cómo está usted?", "Cómo estás?",
        "¿Qué tal estás hoy?", "¿Cómo estás tú?", "¿Y cómo estás?", "¿Cómo va todo?", "¿Cómo te sientes?",
        "¿Todo bien?",
        "¿Te va bien?", "Dime, ¿cómo estás?", "¿Cómo te encuentras?", "¿Estás bien hoy?", "¿Qué tal todo?"),
        "Estoy bien, ¡gracias! ¿Y tú?"),
    (("¡Gracias!", "Muchas gracias.", "Gracias.", "Mil gracias.", "Gracias por tu ayuda.", "Perfecto, gracias.",
        "Te doy las gracias.", "Gracias a ti.", "Muchas gracias por todo.", "¡Mil gracias, amigo!", "Genial, gracias.",
        "Te lo agradezco.", "¡Muy amable, gracias!", "Gracias, me ayuda mucho.", "¡Un millón de gracias!",
        "Gracias de nuevo."), "¡De nada!"),
    (("¡Adiós!", "Hasta luego.", "Adiós.", "Hasta mañana.", "Nos vemos.", "Tengo que irme.", "Hasta pronto.", "Chao.",
        "¡Adiós, hasta mañana!", "Adiós y gracias.", "Me voy.", "¡Hasta la vista!", "Buenas noches, adiós.",
        "Hasta otra.",
        "Ya me voy, adiós.", "Nos vemos mañana.", "¡Chao, amigo!", "Me despido.", "Que te vaya bien."),
        "¡Adiós! Que tengas un buen día."),
    (("¿Qué puedes hacer?", "¿Cómo puedes ayudarme?", "¿Puedes ayudarme?", "¿Qué sabes hacer?", "¡Ayuda!",
        "¿En qué puedes ayudarme?", "Necesito ayuda.", "Ayúdame.", "¿Qué puedes hacer por nosotros?", "¿Qué haces?",
        "Dime qué puedes hacer.", "¿Qué cosas puedes hacer?", "¿Para qué sirves?", "Ayúdame, por favor.",
        "¿Cómo me puedes ayudar?", "¿Puedes hacer algo por mí?", "Enséñame qué sabes hacer.", "¿Qué más puedes hacer?"),
     "Puedo charlar un poco, contar, deletrear y llamar herramientas."),
    (("¿Hablas español?", "¿Sabes español?", "¿Habla usted español?", "¿Entiendes español?", "¿Qué idiomas hablas?",
        "¿Hablas también español?", "¿Puedes entender español?", "¿Sabes hablar español?", "¿Me entiendes en español?",
        "¿Podemos hablar en español?", "¿Tú hablas español?", "¿Entiende usted español?"),
        "Sí, hablo un poco de español."),
    (("Cuéntame un chiste.", "¿Sabes un chiste?", "Un chiste, por favor.", "Dime un chiste.",
        "¿Puedes contar un chiste?", "Cuéntame un chiste, por favor.", "Quiero oír un chiste.", "Hazme reír.",
        "¿Tienes un chiste para mí?", "¿Conoces algún chiste?", "Di un chiste.", "Cuéntanos un chiste."),
        "¿Por qué paró el modelo? Llegó a su último token."),
    (("¿Por qué es así?", "¿Cuántos años tiene el mundo?", "¿Quién escribió el libro?", "¿Cuánto cuesta una casa?",
        "¿Qué tiempo hará mañana?", "¿Cómo funciona un motor?",
      "¿Quién ganó el partido?", "¿Qué debo cocinar hoy?", "¿A qué distancia está la luna?",
      "¿Cuándo se inventó el coche?", "¿Cuántos años tiene {x}?", "¿Cuántos años tiene el {x}?", "¿Quién es {x}?",
      "¿Qué es un {y}?", "¿Por qué es tan grande el {x}?", "¿Dónde está {x}?", "¿Qué significa {y}?", "¿Qué hora es?",
      "¿Quién inventó {x}?", "¿Qué tiempo hace en {x}?", "¿Cuánto cuesta un {y}?", "¿Cuánto pesa un {y}?",
      "¿Cuánta gente vive en {x}?", "¿Dónde puedo comprar {y}?", "¿Quién es el rey de {x}?", "¿Cuándo llega el {x}?",
      "¿A qué distancia está {x}?", "¿Cómo se hace {y}?", "¿Cuántos años tiene la {y}?", "¿Por qué se llama {x}?"),
      "Lo siento, no lo sé."),
)
# what is told, the answer, what is asked, the answer
MEMORY: dict[str, tuple[tuple[tuple[str, ...], str, tuple[str, ...], str], ...]] = {
    "de": ((("Ich heiße {v}.", "Mein Name ist {v}.", "Ich bin {v}.", "Hallo, ich heiße {v}.",
        "Du kannst mich {v} nennen.", "Hallo, ich bin {v}.", "Guten Abend, ich heiße {v}.", "Man nennt mich {v}.",
        "Ich bin der {v}.", "Hier ist {v}.", "Alle nennen mich {v}.", "Nenn mich {v}.", "Guten Tag, ich bin {v}.",
        "{v} heiße ich.",
        "Hallo, mein Name ist {v}.", "Ich werde {v} genannt.", "Guten Morgen, hier spricht {v}.",
        "Mein Vorname ist {v}."), "Schön, dich kennenzulernen, {v}!",
            ("Wie heiße ich?", "Wie ist mein Name?", "Weißt du noch, wie ich heiße?", "Kennst du meinen Namen?",
                "Wer bin ich?", "Sag mir meinen Namen.", "Wie heiße ich denn?", "Weißt du meinen Namen?",
                "Und wie heiße ich?",
                "Wie war mein Name?", "Wie heiße ich nochmal?", "Erinnerst du dich an meinen Namen?", "Mein Name?"),
                "Du heißt {v}."),
           (("Ich wohne in {v}.", "Ich komme aus {v}.", "Ich lebe in {v}.", "Meine Stadt ist {v}.",
               "Ich bin aus {v}.", "Mein Haus steht in {v}.", "Wir wohnen in {v}.", "Ich bin in {v} zu Hause."),
               "{v} ist sicher schön.",
            ("Wo wohne ich?", "Wo lebe ich?", "Woher komme ich?", "In welcher Stadt wohne ich?", "Wo ist mein Haus?",
                "Weißt du, wo ich wohne?",
                "Wo bin ich zu Hause?", "Sag mir, wo ich wohne."), "Du wohnst in {v}.")),
    "es": ((("Me llamo {v}.", "Mi nombre es {v}.", "Soy {v}.", "Hola, me llamo {v}.", "Puedes llamarme {v}.",
        "Hola, soy {v}.", "Buenas tardes, me llamo {v}.", "Todos me llaman {v}.", "Me dicen {v}.", "Llámame {v}.",
        "Buenos días, soy {v}.", "Aquí {v}.", "Soy el {v}.", "Hola, mi nombre es {v}.", "Yo me llamo {v}.",
        "Mi nombre: {v}",
        "Hola, aquí habla {v}.", "Soy {v}, mucho gusto.", "¡Hola! Me llamo {v}."), "¡Mucho gusto, {v}!",
            ("¿Cómo me llamo?", "¿Cuál es mi nombre?", "¿Recuerdas mi nombre?", "¿Sabes mi nombre?", "¿Quién soy?",
                "Dime mi nombre.", "¿Y cómo me llamo?", "¿Recuerdas cómo me llamo?", "¿Cómo me llamo yo?",
                "¿Quién soy yo?",
                "¿Cuál era mi nombre?", "¿Conoces mi nombre?", "¿Mi nombre?", "Dime cómo me llamo."),
            "Te llamas {v}."),
           (("Vivo en {v}.", "Soy de {v}.", "Mi ciudad es {v}.", "Mi casa está en {v}.", "Vengo de {v}.",
               "Vivimos en {v}.", "Yo vivo en {v}.",
                "Mi hogar está en {v}."), "{v} suena bien.",
            ("¿Dónde vivo?", "¿De dónde soy?", "¿En qué ciudad vivo?", "¿Cuál es mi ciudad?", "¿Dónde está mi casa?",
                "¿Sabes dónde vivo?",
                "Dime dónde vivo.", "¿De qué ciudad soy?"), "Vives en {v}.")),
}
LANDS = {
    "de": dict(zip(each("France Germany Italy Spain England Austria Portugal Norway Greece Poland"),
                   each("Frankreich Deutschland Italien Spanien England Österreich Portugal Norwegen "
                        "Griechenland Polen"),
                   strict=True)),
    "es": dict(zip(each("France Germany Italy Spain England Austria Portugal Norway Greece Poland"),
                   each("Francia Alemania Italia España Inglaterra Austria Portugal Noruega Grecia Polonia"),
                   strict=True)),
}
CITY_NAMES = {"de": {"Rome": "Rom", "Vienna": "Wien", "Lisbon": "Lissabon", "Athens": "Athen", "Warsaw": "Warschau"},
              "es": {"Berlin": "Berlín", "Paris": "París", "Rome": "Roma", "London": "Londres", "Vienna": "Viena",
                  "Lisbon": "Lisboa", "Athens": "Atenas", "Warsaw": "Varsovia"}}
CAPITAL_WAYS = {"de": ("Was ist die Hauptstadt von {}?", "Wie heißt die Hauptstadt von {}?",
    "Nenne die Hauptstadt von {}.", "Welche Stadt ist die Hauptstadt von {}?", "Was ist denn die Hauptstadt von {}?",
    "Wie lautet die Hauptstadt von {}?", "Nenn mir die Hauptstadt von {}.", "Kennst du die Hauptstadt von {}?",
    "Weißt du die Hauptstadt von {}?", "Die Hauptstadt von {}?", "Ich suche die Hauptstadt von {}.",
    "Kannst du mir die Hauptstadt von {} sagen?", "Bitte nenne die Hauptstadt von {}.", "Und die Hauptstadt von {}?"),
                "es": ("¿Cuál es la capital de {}?", "¿Qué ciudad es la capital de {}?", "Dime la capital de {}.",
                    "¿Cómo se llama la capital de {}?", "¿Sabes la capital de {}?", "¿La capital de {}?",
                    "¿Conoces la capital de {}?", "Dime cuál es la capital de {}.", "Nombra la capital de {}.",
                    "Quiero saber la capital de {}.", "¿Me dices la capital de {}?", "Dime, ¿cuál es la capital de {}?",
                    "¿Y la capital de {}?", "¿Puedes decirme la capital de {}?")}
CAPITAL_ANSWER = {"de": "Die Hauptstadt von {} ist {}.", "es": "La capital de {} es {}."}
REPEAT_WAYS = {"de": ("Wiederhole: {}", "Sag: {}", "Sprich mir nach: {}", 'Wiederhole "{}".', "Bitte wiederhole: {}",
    'Sag "{}".'),
               "es": ("Repite: {}", "Di: {}", 'Repite "{}".', "Por favor, repite: {}", 'Di "{}".',
                   "Repite después de mí: {}")}
PREFIXES = {"de": ("Hallo! ", "Bitte: ", "Sag mal, ", "Eine Frage: ", "Danke. ", "Hey, ", "Hi, ", "Also, ", "Und ",
    "Gut. "),
    "es": ("¡Hola! ", "Por favor: ", "Una pregunta: ", "Oye, ", "Gracias. ", "Hola, ", "Bueno, ", "Vale. ", "Dime: ")}
SUFFIXES = {"de": (" bitte", ", bitte", " denn", " heute", " jetzt", ", mein Freund", " eigentlich", ", du",
    " nochmal"),
    "es": (" por favor", ", por favor", " hoy", " ahora", ", amigo", ", dime", " otra vez", " tú")}
COUNTS = {"de": ("Zähle bis {b}.", "Zähl bis {b}.", "Kannst du bis {b} zählen?", "Zähle von {a} bis {b}.",
    "Bitte zähle von {a} bis {b}."),
          "es": ("Cuenta hasta {b}.", "¿Puedes contar hasta {b}?", "Cuenta de {a} a {b}.",
          "Por favor, cuenta hasta {b}.",
              "Cuenta del {a} al {b}.")}
OWN_NAME = {"de": (("Wie heißt du?", "Wer bist du?", "Wie ist dein Name?", "Stell dich vor."),
    "Ich bin {}. Wie kann ich dir helfen?"),
            "es": (("¿Cómo te llamas?", "¿Quién eres?", "¿Cuál es tu nombre?", "Preséntate."),
                "Soy {}. ¿En qué puedo ayudarte?")}
TABLES = {"de": GERMAN, "es": SPANISH}
THOUGHT = {"de": "The user writes German. I answer in German.", "es": "The user writes Spanish. I answer in Spanish."}
# fmt: on


def vary_foreign(r: Rng, text: str, language: str) -> str:
    if r.random() < 0.15:
        text = r.choice(PREFIXES[language]) + text
    if r.random() < 0.15 and text.endswith((".", "?", "!")):
        text = text[:-1] + r.choice(SUFFIXES[language]) + text[-1]
    if r.random() < 0.15 and text.endswith((".", "?", "!")):
        text = text[:-1] + r.choice(("", "", "!"))
    if r.random() < 0.1:
        text = text[0].lower() + text[1:]
    return text.replace("¿", "").replace("¡", "") if r.random() < 0.1 else text


def talk(r: Rng, language: str, named: bool = False) -> Exchange:
    """`named`: the system prompt gave the model a name, so the questions for its own name are left out."""
    kind = r.random()
    thought = THOUGHT[language]
    if kind < 0.72:
        table = TABLES[language]
        ways, answer = r.choice(table[:1] + table[2:] if named else table)
        text = r.choice(ways).format(x=invented(r).capitalize(), y=invented(r))
        return Exchange(vary_foreign(r, text, language), answer, thought)
    if kind < 0.76:
        return count(r, language)
    if kind < 0.85:
        land, local = r.choice(list(LANDS[language].items()))
        city = CITY_NAMES[language].get(CAPITALS[land], CAPITALS[land])
        answer = CAPITAL_ANSWER[language].format(local, city)
        return Exchange(vary_foreign(r, r.choice(CAPITAL_WAYS[language]).format(local), language), answer, thought)
    text = value(r)
    return Exchange(r.choice(REPEAT_WAYS[language]).format(text), text, thought)


def count(r: Rng, language: str) -> Exchange:
    way = r.choice(COUNTS[language])
    low = r.randint(2, 12) if "{a}" in way else 1
    high = low + r.randint(2, 9)
    if (low, high) in HELD_OUT_COUNTS:
        return count(r, language)
    answer = ", ".join(str(i) for i in range(low, high + 1)) + "."
    return Exchange(vary_foreign(r, way.format(a=low, b=high), language), answer, THOUGHT[language])


def own_name(r: Rng, name: str, language: str) -> Exchange:
    ways, answer = OWN_NAME[language]
    return Exchange(r.choice(ways), answer.format(name), THOUGHT[language])


def tell_and_ask(r: Rng, language: str) -> tuple[Exchange, Exchange]:
    row = r.choice((0, 0, 1))
    tells, acknowledgement, asks, answer = MEMORY[language][row]
    name = proper(r, CITIES if row else NAMES)
    first = Exchange(r.choice(tells).format(v=name), acknowledgement.format(v=name), THOUGHT[language])
    return first, Exchange(vary_foreign(r, r.choice(asks), language), answer.format(v=name), THOUGHT[language])
