// A click on a heading sorts its table by that column, the best row first; a second click reverses the order. Rows without a number stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
    const turned = { ascending: "descending", descending: "ascending" };
    const order = turned[heading.getAttribute("aria-sort")] ?? heading.dataset.first;
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", order);
    const turn = order === "ascending" ? 1 : -1;
    const isNumber = [...table.tBodies[0].rows].some((row) => row.cells[column].dataset.sort !== undefined);
    const compare = (one, other) => {
      const [mine, theirs] = [one.cells[column], other.cells[column]];
      if (!isNumber) return turn * mine.textContent.localeCompare(theirs.textContent);
      const [left, right] = [mine.dataset.sort, theirs.dataset.sort];
      if (left === undefined || right === undefined) return (left === undefined) - (right === undefined);
      return turn * (left - right);
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  }));
}
