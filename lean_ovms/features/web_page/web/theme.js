// Before the first paint: the theme that was chosen here. "system" is what the browser says.

document.documentElement.dataset.theme = localStorage.getItem("lean_ovms.theme") || "system";
