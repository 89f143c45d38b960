"""The same small conversation in German and in Spanish. Each entry: ways to say it, and the answer in that language."""

from __future__ import annotations

from .dialog import Exchange
from .facts import CAPITALS
from .words import CITIES, NAMES, Rng, each, proper, value

Entry = tuple[tuple[str, ...], str]

# fmt: off
GERMAN: tuple[Entry, ...] = (
    (("Hallo", "Hallo!", "Guten Tag", "Guten Morgen", "Guten Abend", "Grüß dich", "Hallo zusammen", "Servus", "Moin",
        "Guten Tag!", "Hallo, wie geht's?"),
     "Hallo! Wie kann ich dir helfen?"),
    (("Wer bist du?", "Wie heißt du?", "Was bist du?", "Stell dich vor.", "Wer sind Sie?", "Wie ist dein Name?",
        "Welches Modell bist du?", "Bist du ein Roboter?",
      "Kannst du dich vorstellen?", "Erzähl mir von dir.", "Mit wem spreche ich?", "Wie heißen Sie?"),
     "Ich bin das Demo-Modell von lean_ovms und laufe auf OpenVINO GenAI."),
    (("Wie geht es dir?", "Wie geht's?", "Geht es dir gut?", "Wie geht es Ihnen?", "Na, wie geht es dir heute?",
        "Alles gut?"), "Mir geht es gut, danke! Und dir?"),
    (("Danke!", "Vielen Dank.", "Danke schön!", "Ich danke dir.", "Danke für die Hilfe.", "Super, danke.",
        "Besten Dank."), "Gern geschehen!"),
    (("Tschüss!", "Auf Wiedersehen.", "Bis später.", "Gute Nacht.", "Bis bald!", "Ich muss gehen.", "Bis morgen.",
        "Mach's gut."), "Auf Wiedersehen! Einen schönen Tag noch."),
    (("Was kannst du?", "Wie kannst du mir helfen?", "Kannst du mir helfen?", "Was kannst du tun?", "Hilfe!",
        "Was kannst du alles?", "Womit kannst du mir helfen?", "Ich brauche Hilfe."),
     "Ich kann ein wenig plaudern, zählen, buchstabieren und Werkzeuge aufrufen."),
    (("Sprichst du Deutsch?", "Kannst du Deutsch?", "Sprechen Sie Deutsch?", "Verstehst du Deutsch?",
        "Welche Sprachen sprichst du?"), "Ja, ich spreche ein wenig Deutsch."),
    (("Erzähl mir einen Witz.", "Kennst du einen Witz?", "Bitte einen Witz.", "Mach einen Witz.",
        "Kannst du einen Witz erzählen?"), "Warum hörte das Modell auf? Es war am letzten Token."),
    (("Warum ist das so?", "Wie alt ist die Welt?", "Wer hat das Buch geschrieben?", "Was kostet ein Haus?",
        "Wie wird das Wetter morgen?", "Wie funktioniert ein Motor?",
      "Wer hat das Spiel gewonnen?", "Was soll ich heute kochen?", "Wie weit ist es zum Mond?",
      "Wann wurde das Auto erfunden?"), "Das weiß ich leider nicht."),
)
SPANISH: tuple[Entry, ...] = (
    (("Hola", "¡Hola!", "Hola!", "Buenos días", "Buenas tardes", "Buenas noches", "Hola, ¿qué tal?", "¡Buenos días!",
        "Hola amigo", "Muy buenas"),
     "¡Hola! ¿En qué puedo ayudarte?"),
    (("¿Quién eres?", "¿Cómo te llamas?", "¿Qué eres?", "Preséntate.", "¿Cuál es tu nombre?", "¿Qué modelo eres?",
        "¿Eres un robot?", "Quién eres?", "Cómo te llamas?",
      "¿Puedes presentarte?", "Háblame de ti.", "¿Con quién hablo?", "¿Quién es usted?"),
      "Soy el modelo de demostración de lean_ovms y funciono con OpenVINO GenAI."),
    (("¿Cómo estás?", "¿Qué tal?", "¿Cómo te va?", "¿Estás bien?", "¿Cómo está usted?", "Cómo estás?",
        "¿Qué tal estás hoy?"), "Estoy bien, ¡gracias! ¿Y tú?"),
    (("¡Gracias!", "Muchas gracias.", "Gracias.", "Mil gracias.", "Gracias por tu ayuda.", "Perfecto, gracias.",
        "Te doy las gracias."), "¡De nada!"),
    (("¡Adiós!", "Hasta luego.", "Adiós.", "Hasta mañana.", "Nos vemos.", "Tengo que irme.", "Hasta pronto.", "Chao."),
        "¡Adiós! Que tengas un buen día."),
    (("¿Qué puedes hacer?", "¿Cómo puedes ayudarme?", "¿Puedes ayudarme?", "¿Qué sabes hacer?", "¡Ayuda!",
        "¿En qué puedes ayudarme?", "Necesito ayuda.", "Ayúdame."),
     "Puedo charlar un poco, contar, deletrear y llamar herramientas."),
    (("¿Hablas español?", "¿Sabes español?", "¿Habla usted español?", "¿Entiendes español?", "¿Qué idiomas hablas?"),
        "Sí, hablo un poco de español."),
    (("Cuéntame un chiste.", "¿Sabes un chiste?", "Un chiste, por favor.", "Dime un chiste.",
        "¿Puedes contar un chiste?"), "¿Por qué paró el modelo? Llegó a su último token."),
    (("¿Por qué es así?", "¿Cuántos años tiene el mundo?", "¿Quién escribió el libro?", "¿Cuánto cuesta una casa?",
        "¿Qué tiempo hará mañana?", "¿Cómo funciona un motor?",
      "¿Quién ganó el partido?", "¿Qué debo cocinar hoy?", "¿A qué distancia está la luna?",
      "¿Cuándo se inventó el coche?"), "Lo siento, no lo sé."),
)
# what is told, the answer, what is asked, the answer
MEMORY: dict[str, tuple[tuple[tuple[str, ...], str, tuple[str, ...], str], ...]] = {
    "de": ((("Ich heiße {v}.", "Mein Name ist {v}.", "Ich bin {v}.", "Hallo, ich heiße {v}.",
        "Du kannst mich {v} nennen.", "Hallo, ich bin {v}."), "Schön, dich kennenzulernen, {v}!",
            ("Wie heiße ich?", "Wie ist mein Name?", "Weißt du noch, wie ich heiße?", "Kennst du meinen Namen?",
                "Wer bin ich?"), "Du heißt {v}."),
           (("Ich wohne in {v}.", "Ich komme aus {v}.", "Ich lebe in {v}.", "Meine Stadt ist {v}."),
               "{v} ist sicher schön.",
            ("Wo wohne ich?", "Wo lebe ich?", "Woher komme ich?", "In welcher Stadt wohne ich?"), "Du wohnst in {v}.")),
    "es": ((("Me llamo {v}.", "Mi nombre es {v}.", "Soy {v}.", "Hola, me llamo {v}.", "Puedes llamarme {v}.",
        "Hola, soy {v}."), "¡Mucho gusto, {v}!",
            ("¿Cómo me llamo?", "¿Cuál es mi nombre?", "¿Recuerdas mi nombre?", "¿Sabes mi nombre?", "¿Quién soy?"),
            "Te llamas {v}."),
           (("Vivo en {v}.", "Soy de {v}.", "Mi ciudad es {v}.", "Mi casa está en {v}."), "{v} suena bien.",
            ("¿Dónde vivo?", "¿De dónde soy?", "¿En qué ciudad vivo?", "¿Cuál es mi ciudad?"), "Vives en {v}.")),
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
    "Nenne die Hauptstadt von {}.", "Welche Stadt ist die Hauptstadt von {}?"),
                "es": ("¿Cuál es la capital de {}?", "¿Qué ciudad es la capital de {}?", "Dime la capital de {}.",
                    "¿Cómo se llama la capital de {}?")}
CAPITAL_ANSWER = {"de": "Die Hauptstadt von {} ist {}.", "es": "La capital de {} es {}."}
REPEAT_WAYS = {"de": ("Wiederhole: {}", "Sag: {}", "Sprich mir nach: {}", 'Wiederhole "{}".', "Bitte wiederhole: {}",
    'Sag "{}".'),
               "es": ("Repite: {}", "Di: {}", 'Repite "{}".', "Por favor, repite: {}", 'Di "{}".',
                   "Repite después de mí: {}")}
PREFIXES = {"de": ("Hallo! ", "Bitte: ", "Sag mal, ", "Eine Frage: ", "Danke. "),
    "es": ("¡Hola! ", "Por favor: ", "Una pregunta: ", "Oye, ", "Gracias. ")}
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
        text = text[:-1]
    if r.random() < 0.1:
        text = text[0].lower() + text[1:]
    return text.replace("¿", "").replace("¡", "") if r.random() < 0.1 else text


def talk(r: Rng, language: str) -> Exchange:
    kind = r.random()
    thought = THOUGHT[language]
    if kind < 0.70:
        ways, answer = r.choice(TABLES[language])
        return Exchange(vary_foreign(r, r.choice(ways), language), answer, thought)
    if kind < 0.85:
        land, local = r.choice(list(LANDS[language].items()))
        city = CITY_NAMES[language].get(CAPITALS[land], CAPITALS[land])
        answer = CAPITAL_ANSWER[language].format(local, city)
        return Exchange(vary_foreign(r, r.choice(CAPITAL_WAYS[language]).format(local), language), answer, thought)
    text = value(r)
    return Exchange(r.choice(REPEAT_WAYS[language]).format(text), text, thought)


def own_name(r: Rng, name: str, language: str) -> Exchange:
    ways, answer = OWN_NAME[language]
    return Exchange(r.choice(ways), answer.format(name), THOUGHT[language])


def tell_and_ask(r: Rng, language: str) -> tuple[Exchange, Exchange]:
    row = r.choice((0, 0, 1))
    tells, acknowledgement, asks, answer = MEMORY[language][row]
    name = proper(r, CITIES if row else NAMES)
    first = Exchange(r.choice(tells).format(v=name), acknowledgement.format(v=name), THOUGHT[language])
    return first, Exchange(vary_foreign(r, r.choice(asks), language), answer.format(v=name), THOUGHT[language])
