// Panels of features. The server puts what they show into index.html; each has a script, which may export
//   start(readModels)  once; readModels lists the models again
//   setModels(models)  all models that are served
//   choose(model)      the one that the panel is shown for

import { t } from "./i18n.js";

const panels = [...document.querySelectorAll(".panel")].map((element) => ({
  element,
  name: element.dataset.feature,
  view: element.parentElement.id.replace("view-", ""),
  tasks: JSON.parse(element.dataset.tasks), // what models are for, by their task
}));

export const features = panels.map(({ name }) => name);
export const views = [...new Set(panels.map(({ view }) => view))];
export const viewOf = (task) => panels.find(({ tasks }) => task in tasks)?.view;
export const taskName = (task) => t(panels.find(({ tasks }) => task in tasks)?.tasks[task] ?? "");

export async function start(readModels) {
  await Promise.all(panels.map(async (panel) => {
    panel.script = await import(new URL(`web/${panel.name}/panel.js`, document.baseURI));
    panel.script.start?.(readModels);
  }));
}

export function setModels(models) {
  for (const { script } of panels) script.setModels?.(models);
}

export function choose(chosenView, model) {
  for (const { element, view, tasks, script } of panels) {
    if (view !== chosenView) continue;
    element.hidden = !(model.task in tasks);
    if (!element.hidden) script.choose?.(model);
  }
}
