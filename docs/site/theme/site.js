/* The menu of a narrow window, and the search. The index is a script and no JSON, because a browser
 * that shows the site from files may not read other files. */
'use strict';

document.querySelectorAll('[data-toggle=wy-nav-top]').forEach((button) => {
  button.addEventListener('click', () => {
    document.querySelectorAll('[data-toggle=wy-nav-shift]').forEach((part) => {
      part.classList.toggle('shift');
    });
  });
});

/* The menu shows the page in it. */
const menu = document.querySelector('.wy-side-scroll');
const entry = menu.querySelector('a.current');
if (entry) menu.scrollTop = entry.offsetTop - menu.clientHeight / 3;

function load(path) {
  return new Promise((resolve, reject) => {
    const script = document.createElement('script');
    script.src = base_url + '/search/' + path;
    script.onload = resolve;
    script.onerror = reject;
    document.head.append(script);
  });
}

/* Words that are joined in names, such as doorman_server_create, are found one by one. */
function makeIndex() {
  lunr.tokenizer.separator = /[\s\-_.,/()]+/;
  return lunr(function () {
    this.ref('location');
    this.field('title', {boost: 10});
    this.field('text');
    this.metadataWhitelist = ['position'];
    searchIndex.forEach((page) => this.add(page));
  });
}

/* Finds pages with all words, or else pages with some of them or with words that begin so. */
function find(index, text) {
  const words = lunr.tokenizer(text).map(String).filter((word) => lunr.stopWordFilter(word));
  const presence = lunr.Query.presence.REQUIRED;
  const all = index.query((query) => words.forEach((word) => query.term(word, {presence})));
  if (all.length > 0 || words.length === 0) return all;
  const wildcard = lunr.Query.wildcard.TRAILING;
  return index.query((query) => words.forEach((word) => query.term(word, {wildcard})));
}

/* The text around the first word that was found. */
function excerpt(result, text) {
  const positions = Object.values(result.matchData.metadata)
    .flatMap((fields) => (fields.text ? fields.text.position : []))
    .map(([start]) => start);
  const start = Math.max(0, Math.min(...positions, text.length) - 60);
  const from = positions.length === 0 || start === 0 ? 0 : text.indexOf(' ', start) + 1;
  const end = text.length > from + 220 ? text.lastIndexOf(' ', from + 220) : text.length;
  return (from > 0 ? '… ' : '') + text.slice(from, end) + (end < text.length ? ' …' : '');
}

function show(index, pages, box, text) {
  const results = find(index, text).slice(0, 50);
  box.replaceChildren();
  if (results.length === 0) box.textContent = 'No page has these words.';
  for (const result of results) {
    const page = pages.get(result.ref);
    const title = document.createElement('h3');
    const link = document.createElement('a');
    const place = document.createElement('small');
    const line = document.createElement('p');
    link.href = base_url + '/' + page.location;
    link.textContent = page.title;
    line.textContent = excerpt(result, page.text);
    place.textContent = page.page === page.title ? '' : page.page;
    title.append(link, ' ', place);
    box.append(title, line);
  }
}

const box = document.getElementById('mkdocs-search-results');
if (box) {
  const input = document.getElementById('mkdocs-search-query');
  input.value = new URLSearchParams(location.search).get('q') || '';
  Promise.all([load('lunr.js'), load('search_index.js')]).then(() => {
    const index = makeIndex();
    const pages = new Map(searchIndex.map((page) => [page.location, page]));
    const update = () => show(index, pages, box, input.value);
    input.addEventListener('input', update);
    update();
  });
}
