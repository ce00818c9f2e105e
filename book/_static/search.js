// Summaries of search results: the first sentence with a word that was searched for, else what the page says of itself.
Search.makeSearchSummary = (html, keywords, anchor) => {
  const page = new DOMParser().parseFromString(html, "text/html");
  const article = page.querySelector("article.bd-article");
  const place = page.getElementById(anchor.replace("#", "")) ?? article;
  if (!place) return null;
  page.querySelectorAll(".headerlink").forEach((one) => one.remove());
  // the index holds stems: "rotari" of "rotary"
  const stems = [...keywords].map((one) => one.toLowerCase().replace(/i$/, ""));
  const sentences = [...place.querySelectorAll("p, li, dd, figcaption")]
    .filter((one) => !one.querySelector("p, li, dd, .math"))
    .flatMap((one) => one.textContent.trim().split(/(?<=[.!?])\s+(?=\p{Lu})/u))
    .map((one) => one.replace(/\s+/g, " "))
    .filter((one) => /[.!?]$/.test(one) && one.split(" ").length > 4);
  const said =
    sentences.find((one) => stems.some((stem) => one.toLowerCase().includes(stem))) ??
    page.querySelector('meta[name="description"]')?.content;
  if (!said) return null;
  const summary = document.createElement("p");
  summary.className = "context";
  summary.textContent = said.length > 300 ? said.slice(0, 300).replace(/\s\S*$/, " …") : said;
  return summary;
};
