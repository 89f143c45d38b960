// A conversation as a tree: an edited question and a second answer are branches, and nothing is lost.
// conversation.messages has every message, each with the place of its parent (-1: none), which comes before it.
// conversation.tip is the place of the last message that is shown.

export function path(conversation) {
  const found = [];
  for (let place = conversation.tip; place >= 0; place = conversation.messages[place].parent) found.unshift(conversation.messages[place]);
  return found;
}

// Appends a message after another one (null: as the first) and shows it.
export function add(conversation, parent, message) {
  conversation.messages.push(Object.assign(message, { parent: conversation.messages.indexOf(parent) }));
  conversation.tip = conversation.messages.length - 1;
}

export const parentOf = (conversation, message) => conversation.messages[message.parent] || null;

// The message and its alternatives, oldest first.
export const versions = (conversation, message) => conversation.messages.filter((one) => one.parent === message.parent);

// Shows this version, with what was last said after it.
export function choose(conversation, message) {
  let place = conversation.messages.indexOf(message);
  for (let next = place; next >= 0; next = conversation.messages.findLastIndex((one) => one.parent === place)) place = next;
  conversation.tip = place;
}

// Takes back the message that was added last.
export function takeBack(conversation) {
  const { parent } = conversation.messages.pop();
  conversation.tip = parent;
  if (parent >= 0) choose(conversation, conversation.messages[parent]);
}

// Conversations of former versions of this page are a list.
export function asTree(conversation) {
  if (Number.isInteger(conversation.tip)) return conversation;
  const messages = conversation.messages.map((message, place) => ({ ...message, parent: place - 1 }));
  return { ...conversation, messages, tip: messages.length - 1 };
}
