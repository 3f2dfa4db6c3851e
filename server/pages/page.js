/* The script of the status page. The build embeds it (see server/pages/page.c). Every two seconds
 * it fetches the page again and replaces <main>, unless the reader selects text, uses a link, has
 * typed something there or reads an explanation. While the reader types into the filter, it changes
 * the address of the page. On the page of a key it sends the message of the button.
 *
 * The script parses only <main>. The rest of the new page has a style with another nonce. The
 * browser would refuse this style, and would say so in its console. */
(function () {
    var main = document.querySelector('main'), live = document.getElementById('live'),
        form = document.forms[0], busy = false, timer;

    function say(state, text) {
        live.className = state;
        live.textContent = text;
    }

    function isTyped(input) {
        return input.value !== input.defaultValue;
    }

    function isUsed() {
        return main.contains(document.activeElement) || String(getSelection()) ||
               main.querySelector('[title]:hover, svg:hover') ||
               Array.prototype.some.call(main.querySelectorAll('input'), isTyped);
    }

    function parse(text) {
        var part = text.slice(text.indexOf('<main '), text.indexOf('</main>'));
        return new DOMParser().parseFromString(part, 'text/html').querySelector('main');
    }

    function load() {
        if (busy || document.hidden) return;
        busy = true;
        var at = location.href;
        fetch(at, {credentials: 'same-origin'}).then(function (r) {
            return r.text();
        }).then(function (text) {
            var next = parse(text), used = isUsed();
            if (!next) throw 0;
            if (at === location.href && !used) {
                main.replaceWith(next);
                main = next;
            }
            say(next.dataset.state, used ? 'paused' : next.dataset.text);
        }).catch(function () {
            say('bad', 'not reachable');
        }).then(function () {
            busy = false;
        });
    }

    function reset(change) {
        var entry = {resource_id: change.dataset.resource, key: change.dataset.key},
            says = change.querySelector('span');
        fetch('/v1/reset', {
            method: 'POST',
            credentials: 'same-origin',
            headers: {'Content-Type': 'application/json'},
            body: JSON.stringify({entry: [entry]})
        }).then(function (r) {
            return r.json();
        }).then(function (answer) {
            says.textContent = answer.error ? answer.error.message : 'done';
        }).catch(function () {
            says.textContent = 'not reachable';
        });
    }

    say(main.dataset.state, main.dataset.text);
    setInterval(load, 2000);
    document.addEventListener('click', function (event) {
        var change = event.target.closest('#change button');
        if (change) reset(change.parentNode);
    });
    form.addEventListener('input', function () {
        if (!form.elements.filter) return;
        clearTimeout(timer);
        timer = setTimeout(function () {
            var url = new URL(location.href);
            url.searchParams.set('filter', form.elements.filter.value);
            url.searchParams.delete('page');
            history.replaceState(null, '', url);
            load();
        }, 200);
    });
})();
