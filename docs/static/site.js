// Boxes that scroll can be scrolled by the keyboard as well.
addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".table-wrapper, .formula, .highlight pre")) {
    box.tabIndex = 0;
  }
});
