// Loaded before anything is painted: the theme that this browser has chosen, if any.
const theme = localStorage.getItem("theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
