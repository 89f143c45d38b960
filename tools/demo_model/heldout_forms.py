"""Held-out schemas, as users write them with pydantic, each with a question. None of them is drawn by the generator."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


class CalendarEvent(BaseModel):
    name: str
    date: str
    participants: list[str]


class Step(BaseModel):
    explanation: str
    output: str


class MathReasoning(BaseModel):
    steps: list[Step]
    final_answer: str


class Sentiment(BaseModel):
    sentiment: Literal["positive", "negative", "neutral"]


class Verdict(BaseModel):
    approved: bool
    reason: str


class Ingredient(BaseModel):
    item: str
    grams: float


class Recipe(BaseModel):
    title: str
    servings: int
    ingredients: list[Ingredient]
    vegetarian: bool


class Address(BaseModel):
    street: str
    zip_code: str
    city: str


class Customer(BaseModel):
    full_name: str
    address: Address
    loyalty_points: int


class Book(BaseModel):
    title: str
    author: str
    year_published: int
    genres: list[str]
    isbn: str | None


class Commit(BaseModel):
    summary: str


class Answer(BaseModel):
    answer: str
    confidence: float


class Keywords(BaseModel):
    keywords: list[str]


class Priority(Enum):
    LOW = "low"
    HIGH = "high"
    URGENT = "urgent"


class Ticket(BaseModel):
    ticket_id: int
    subject_line: str
    priority: Priority
    assignee: str | None
    labels: list[str]
    resolved: bool


class Point(BaseModel):
    x: float
    y: float


class Polygon(BaseModel):
    vertices: list[Point]


class Translation(BaseModel):
    original_text: str
    translated_text: str
    target_language: str


class Quiz(BaseModel):
    question: str
    choices: list[str]
    correct_index: int


class Forecast(BaseModel):
    location: str
    celsius: float
    windy: bool
    advice: str


class Invoice(BaseModel):
    invoice_number: str
    total_amount: float
    paid: bool
    due_date: str
    line_items: list[str]


class Matrix(BaseModel):
    rows: list[list[int]]


class Employee(BaseModel):
    employee_name: str
    department: str
    manager: str | None
    skills: list[str]
    salary: int
    remote: bool


class Film(BaseModel):
    director: str
    runtime_minutes: int
    rating: float


class Query(BaseModel):
    table_name: str
    columns: list[str]
    where_clause: str | None
    limit: int


class Review(BaseModel):
    stars: Literal[1, 2, 3, 4, 5]
    headline: str
    body_text: str


class Hop(BaseModel):
    origin: str
    destination: str


class Trip(BaseModel):
    traveller: str
    hops: list[Hop]
    nights: int


class Diagnosis(BaseModel):
    patient_name: str
    symptoms: list[str]
    severity_score: int
    follow_up: bool


class Plan(BaseModel):
    goal: str
    tasks: list[str]
    estimated_hours: float


class Settings(BaseModel):
    darkMode: bool  # noqa: N815
    fontSize: int  # noqa: N815
    userLocale: str  # noqa: N815


class Span(BaseModel):
    start_offset: int
    end_offset: int
    entity: str


class Entities(BaseModel):
    spans: list[Span]
    has_more: bool


class Country(BaseModel):
    capital_city: str
    population_millions: float
    languages: list[str]
    neighbours: list[str]


class Lookup(BaseModel):
    found: bool
    path_to_file: str | None
    line_number: int | None


class Pet(BaseModel):
    species: Literal["cat", "dog", "bird"]
    nickname: str
    favourite_foods: list[str]
    weight_kg: float
    owner_email: str
    vaccinated: bool


FORMS: tuple[tuple[type[BaseModel], str], ...] = (
    (Person, "Jane Doe is 54 years old."),
    (CalendarEvent, "Alice and Bob are going to a science fair on Friday."),
    (MathReasoning, "How can I solve 8x + 7 = -23?"),
    (Sentiment, "The food was cold and the waiter was rude."),
    (Verdict, "Should this pull request be merged?"),
    (Recipe, "Write me a recipe for pancakes."),
    (Customer, "Register Hans Meier, Bahnhofstrasse 7, 8001 Zurich."),
    (Book, "Which book should I read next?"),
    (Commit, "Write a commit message for this change: the cache is now cleared at start."),
    (Answer, "What is the capital of France?"),
    (Keywords, "Give me keywords for an article about electric cars."),
    (Ticket, "My printer does not print any more, please help soon!"),
    (Polygon, "Give me a triangle."),
    (Translation, "Translate 'good morning' to German."),
    (Quiz, "Make a quiz question about history."),
    (Forecast, "How will the weather be in Calgary tomorrow?"),
    (Invoice, "Invoice 2024-117 over 420.50 euros is due on the first of May."),
    (Matrix, "Give me an identity matrix."),
    (Employee, "Tell me about a software engineer."),
    (Film, "Tell me about a film of Hitchcock."),
    (Query, "Which customers live in Zurich?"),
    (Review, "Hello!"),
    (Trip, "I travel from Hanover to Trieste, with a stop in Salzburg."),
    (Diagnosis, "The patient coughs and has had a fever for three days."),
    (Plan, "I want to learn to play chess."),
    (Settings, "Please use large letters."),
    (Entities, "Barack Obama was born in Hawaii."),
    (Country, "Tell me about Switzerland."),
    (Pet, "We have a small dog called Rex."),
    (Lookup, "Where is the main function?"),
)
