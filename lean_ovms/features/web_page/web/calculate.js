// The value of an expression of numbers, without running it as code.

import { Problem } from "./api.js";

const TOKEN = /\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|[a-z]\w*|\*\*|[-+*/%^(),])/iy;
const NAMES = { pi: Math.PI, e: Math.E };
const FUNCTIONS = ["abs", "acos", "asin", "atan", "ceil", "cos", "exp", "floor", "log", "log10", "log2", "max", "min", "round", "sin", "sqrt", "tan"];
const MAX_LENGTH = 1000; // characters: no expression is nested too deeply

// Throws a Problem for what is no expression.
export function calculate(text) {
  if (text.length > MAX_LENGTH) throw new Problem("the expression is too long");
  const tokens = split(text);
  let at = 0;
  const next = (...wanted) => (wanted.includes(tokens[at]) ? tokens[at++] : undefined);
  const need = (wanted) => {
    if (!next(wanted)) throw new Problem(`${wanted} is missing before ${tokens[at] ?? "the end"}`);
  };
  const sum = () => {
    let value = product();
    for (let sign; (sign = next("+", "-")); ) value += sign === "+" ? product() : -product();
    return value;
  };
  const product = () => {
    let value = signed();
    for (let sign; (sign = next("*", "/", "%")); ) {
      const other = signed();
      value = sign === "*" ? value * other : sign === "/" ? value / other : value % other;
    }
    return value;
  };
  const signed = () => (next("-") ? -signed() : next("+") ? signed() : power());
  const power = () => {
    const value = single();
    return next("^", "**") ? value ** signed() : value;
  };
  const single = () => {
    const token = tokens[at++];
    if (token === "(") {
      const value = sum();
      need(")");
      return value;
    }
    if (/^[\d.]/.test(token ?? "")) return Number(token);
    if (Object.hasOwn(NAMES, token ?? "")) return NAMES[token];
    if (!FUNCTIONS.includes(token)) throw new Problem(`${token ?? "the end"} is no number`);
    need("(");
    const values = [sum()];
    while (next(",")) values.push(sum());
    need(")");
    return Math[token](...values);
  };
  const value = sum();
  if (at < tokens.length) throw new Problem(`${tokens[at]} is too much`);
  return value;
}

function split(text) {
  const found = [];
  for (let at = 0; text.slice(at).trim(); at = TOKEN.lastIndex) {
    TOKEN.lastIndex = at;
    const match = TOKEN.exec(text);
    if (!match) throw new Problem(`${text.slice(at).trim()[0]} is no part of an expression`);
    found.push(match[1].toLowerCase());
  }
  return found;
}
