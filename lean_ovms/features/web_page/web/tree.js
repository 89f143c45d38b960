// A conversation as a tree: an edited question and a second answer are branches, and nothing is lost.
// conversation.messages has every message, each with the place of its parent (-1: none), which comes before it.
// conversation.tip is the place of the last message that is shown; message.shown that of what was shown after it.

export function path(conversation) {
  const found = [];
  for (let place = conversation.tip; place >= 0; place = conversation.messages[place].parent) found.unshift(conversation.messages[place]);
  return found;
}

// Of each message with calls: their results, by the call's id, and whether more can come, as nothing else was said since.
export function callsOf(shown) {
  const found = new Map();
  let last = null;
  for (const message of shown) {
    if (message.role === "tool" && last) {
      last.results.set(message.callId, message);
      continue;
    }
    if (last) last.open = false;
    last = message.calls ? { results: new Map(), open: true } : null;
    if (last) found.set(message, last);
  }
  return found;
}

// Appends a message after another one (null: as the first) and shows it.
export function add(conversation, parent, message) {
  conversation.messages.push(Object.assign(message, { parent: conversation.messages.indexOf(parent) }));
  showUpTo(conversation, conversation.messages.length - 1);
}

function showUpTo(conversation, tip) {
  conversation.tip = tip;
  for (const message of path(conversation)) if (message.parent >= 0) conversation.messages[message.parent].shown = conversation.messages.indexOf(message);
}

export const parentOf = (conversation, message) => conversation.messages[message.parent] || null;

// The message and its alternatives, oldest first.
export const versions = (conversation, message) => conversation.messages.filter((one) => one.parent === message.parent);

// Shows this version, with what was last shown after it.
export function choose(conversation, message) {
  let last = message;
  while (conversation.messages[last.shown]?.parent === conversation.messages.indexOf(last)) last = conversation.messages[last.shown];
  showUpTo(conversation, conversation.messages.indexOf(last));
}

// Takes back the message that was added last; what is before it shows its newest other answer, if it has one.
export function takeBack(conversation) {
  const { parent } = conversation.messages.pop();
  const other = conversation.messages.findLast((one) => one.parent === parent);
  if (other) choose(conversation, other);
  else conversation.tip = parent;
}

// What is shown of a conversation, as Markdown. t: translates.
export function asText(conversation, t) {
  const who = { user: t("You"), assistant: t("Model"), tool: t("Tool") };
  const parts = path(conversation).map(({ role, content, calls, model }) => {
    const asked = (calls || []).map((call) => `\`${call.function.name}(${call.function.arguments})\``);
    return `## ${model || who[role]}\n\n${[content, ...asked].filter(Boolean).join("\n\n")}\n`;
  });
  return `# ${conversation.title}\n\n${parts.join("\n")}`;
}

// Conversations of former versions of this page are a list.
export function asTree(conversation) {
  if (Number.isInteger(conversation.tip)) return conversation;
  const messages = conversation.messages.map((message, place) => ({ ...message, parent: place - 1 }));
  return { ...conversation, messages, tip: messages.length - 1 };
}
