"""A server that is not a Doorman, or a bad one, for tests/doormanctl_check.sh.

    python3 tests/fake_server.py BEHAVIOUR [ADDRESS]

It prints its port. BEHAVIOUR says what it answers to each request:

    silent    nothing, ever
    slow      an empty list of limits, after three seconds
    page      a page of HTML
    number    JSON, but a number
    noise     bytes that are not HTTP
    missing   a page of HTML with the status 404
    endless   a list of counters whose next part is the same part
    standby   that the master is another process: the one at ADDRESS
"""
import socket
import sys
import threading
import time

behaviour, address = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ''


def response(body, status='200 OK', more=''):
    return (f'HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}'
            f'Connection: close\r\n\r\n{body}').encode()


def standby(request):
    path = request.split()[1]
    if path == '/v1/config/check':
        return response('{"valid":true,"is_master":false,"changes":[]}')
    if request.startswith('POST'):
        return response('{"mastership":{}}', '307 Temporary Redirect',
                        f'Location: {address}{path}\r\n')
    if path == '/v1/status':
        return response('{"node":"n","is_master":false,"master_address":"tcp://master:15000",'
                        f'"master_http_address":"{address}","resources":[]}}')
    return response('{"is_master":false,"limits":[],"longest_held":[],"longest_waiting":[]}')


def answer(request):
    if behaviour == 'slow':
        time.sleep(3)
        return response('{"is_master":true,"limits":[]}')
    return {
        'page': lambda: response('<html>Welcome</html>'),
        'number': lambda: response('7'),
        'noise': lambda: b'\0\1\2 what?\r\n\r\n',
        'missing': lambda: response('<html>Not here</html>', '404 Not Found'),
        'endless': lambda: response('{"what":"counter","key":"a"}\n{"next":"0-0"}\n'),
        'standby': lambda: standby(request),
    }[behaviour]()


def serve(connection):
    request = b''
    while b'\r\n\r\n' not in request:
        part = connection.recv(65536)
        if not part:
            return
        request += part
    if behaviour == 'silent':
        time.sleep(600)
    else:
        connection.sendall(answer(request.decode(errors='replace')))
    connection.close()


def serve_quietly(connection):
    try:
        serve(connection)
    except OSError:
        pass  # the client has left


listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve_quietly, args=(listener.accept()[0],), daemon=True).start()
