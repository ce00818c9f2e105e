// The table of all verdicts: choose by paper, verdict and effort. Without this script the whole table stands.
(() => {
  const table = document.querySelector("table.ledger");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const bar = document.createElement("form");
  bar.className = "ledger-filter";
  const chosen = {};
  const said = document.createElement("output");

  const show = () => {
    let count = 0;
    for (const row of rows) {
      const kept = Object.entries(chosen).every(([key, list]) => !list.value || list.value.split("|").includes(row.dataset[key]));
      row.hidden = !kept;
      count += kept;
    }
    said.textContent = `${count} of ${rows.length} forms`;
  };

  const add = (key, words) => {
    const list = document.createElement("select");
    const values = [...new Set(rows.map((row) => row.dataset[key]))];
    list.add(new Option("all", ""));
    if (key === "verdict") list.add(new Option("any that does not hold", "refuted|fails|depends"));
    for (const value of values) {
      const count = rows.filter((row) => row.dataset[key] === value).length;
      list.add(new Option(`${value} (${count})`, value));
    }
    list.addEventListener("change", show);
    const label = document.createElement("label");
    label.append(words, " ", list);
    bar.append(label);
    chosen[key] = list;
  };
  add("paper", "paper");
  add("verdict", "verdict");
  add("effort", "tried on");
  bar.append(said);
  bar.addEventListener("submit", (event) => event.preventDefault());
  table.before(bar);

  // a page's link to a row shows that row, whatever is chosen
  const find = () => {
    const row = document.getElementById(location.hash.slice(1));
    if (!row || !rows.includes(row)) return;
    bar.reset();
    show();
    row.scrollIntoView({ block: "center" });
  };
  window.addEventListener("hashchange", find);
  show();
  find();
})();
