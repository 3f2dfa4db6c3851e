/* The script of the status page. The build embeds it (see server/page.c). Every two seconds it
 * fetches the page again and replaces <main>, unless the reader selects text or uses a link. While
 * the reader types into the filter, it changes the address of the page. */
(function () {
    var main = document.querySelector('main'), live = document.getElementById('live'),
        form = document.forms[0], busy = false, timer;

    function say(on, text) {
        live.className = on ? 'on' : 'off';
        live.textContent = text;
    }

    function load() {
        if (busy || document.hidden) return;
        busy = true;
        var at = location.href;
        fetch(at, {credentials: 'same-origin'}).then(function (r) {
            return r.text();
        }).then(function (text) {
            var next = new DOMParser().parseFromString(text, 'text/html').querySelector('main');
            if (!next) throw 0;
            if (at === location.href && !main.contains(document.activeElement) &&
                !String(getSelection())) {
                main.replaceWith(next);
                main = next;
            }
            say(true, 'live');
        }).catch(function () {
            say(false, 'not reachable');
        }).then(function () {
            busy = false;
        });
    }

    say(true, 'live');
    setInterval(load, 2000);
    form.addEventListener('input', function () {
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
