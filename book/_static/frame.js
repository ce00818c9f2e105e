// A formula in a sentence that is wider than its column scrolls in a box of its own; the others keep their baseline.
// What scrolls is marked as long as it goes on to the right.
(() => {
  const boxes = ":is(div.highlight pre, .pst-scrollable-table-container, .house-table, div.math, span.math.too-wide)";
  const goesOn = (box) => box.classList.toggle("goes-on", box.scrollWidth - box.clientWidth - box.scrollLeft > 2);
  const mark = () => {
    for (const formula of document.querySelectorAll(".bd-article span.math")) {
      const drawn = formula.querySelector("svg");
      const nearest = formula.closest("p, li, dd, td, figcaption, dt, h1, h2, h3");
      const column = nearest?.clientWidth ? nearest : nearest?.closest("td"); // a paragraph in a cell may stand in a line
      if (!drawn || !column) continue;
      const full = formula.parentElement.matches(".together") ? 12 : 0; // room for a full stop
      formula.classList.toggle("too-wide", drawn.getBoundingClientRect().width + full > column.clientWidth + 1);
    }
    document.querySelectorAll(`.bd-article ${boxes}`).forEach(goesOn);
  };
  let waiting;
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(mark, 100);
  };
  window.addEventListener("load", () => {
    Promise.resolve(window.MathJax?.startup?.promise).then(mark);
    window.addEventListener("resize", soon);
    document.addEventListener("toggle", soon, true); // a folded proof is opened
    document.addEventListener("scroll", ({ target }) => target.matches?.(boxes) && goesOn(target), true);
  });
})();
