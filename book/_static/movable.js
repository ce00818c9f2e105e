// Movable figures: what the controls choose is looked up in the page's own data and shown. Nothing is computed here.
(() => {
  const chosen = (frames, by, at) => by.reduce((part, name) => part[at[name]], frames);

  async function wake(figure) {
    const { controls, feeds, plots } = JSON.parse(figure.querySelector("script").textContent);
    const says = figure.querySelector(".says"), place = figure.querySelector(".plots");
    const inputs = Object.fromEntries(controls.map(({ name }) => [name, figure.querySelector(`[name=${name}]`)]));
    for (const part of figure.querySelectorAll("[hidden]")) part.hidden = false;
    const sources = {};
    for (const plot of plots) {
      const target = place.appendChild(document.createElement("div"));
      const views = await Bokeh.embed.embed_item(plot, target);
      const { document: drawn } = (views.roots ?? [...views])[0].model;
      for (const { source } of feeds) sources[source] = drawn.get_model_by_name(source) ?? sources[source];
    }
    const show = () => {
      const at = {};
      for (const { name, values, under } of controls) {
        const input = inputs[name], here = under ? values[at[under]] : values;
        if (input.type === "range") {
          const wanted = Math.min(Number(input.value), here.length - 1);
          input.max = here.length - 1;
          input.value = wanted;
          input.disabled = here.length < 2;
          input.setAttribute("aria-valuetext", here[wanted]);
          input.parentElement.querySelector("output").textContent = here[wanted];
        }
        at[name] = Number(input.value);
      }
      const changed = {};
      for (const { source, by, frames } of feeds) {
        const frame = chosen(frames, by, at);
        if (source === "says") says.textContent = frame;
        else changed[source] = { ...changed[source], ...frame };
      }
      for (const [name, columns] of Object.entries(changed))
        sources[name].data = { ...sources[name].data, ...columns };
    };
    for (const input of Object.values(inputs)) input.addEventListener("input", show);
    show();
    figure.classList.add("awake");
  }

  async function wakeAll() {
    if (!window.Bokeh) return;  // the still pictures stay
    for (const figure of document.querySelectorAll(".movable")) {
      try {
        await wake(figure);
      } catch (error) {
        for (const part of figure.querySelectorAll(".controls, .plots, .says")) part.hidden = true;
        console.error(error);
      }
    }
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", wakeAll);
  else wakeAll();
})();
