// A formula in a sentence that is wider than its column scrolls in a box of its own; the others keep their baseline.
(() => {
  const mark = () => {
    for (const formula of document.querySelectorAll(".bd-article span.math")) {
      const drawn = formula.querySelector("svg");
      const column = formula.closest("p, li, dd, td, figcaption, dt, h1, h2, h3");
      if (!drawn || !column) continue;
      formula.classList.toggle("too-wide", drawn.getBoundingClientRect().width > column.clientWidth + 1);
    }
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
  });
})();
