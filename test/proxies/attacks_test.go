package proxies

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	client = "127.9.9.9"
	forged = "192.0.2.1" // the address of somebody else
)

const (
	xff       = "X-Forwarded-For"
	realIP    = "X-Real-IP"
	forwarded = "Forwarded"
)

// A deployment is what is in front of a guarded server.
type deployment struct {
	name   string
	addr   string // of the outermost proxy
	header string // that names the client
}

func (w *world) deployments() []deployment {
	return []deployment{
		{"nginx, XForwardedFor", w.nginx + ":8001", xff},
		{"nginx, ProxyHeader", w.nginx + ":8002", realIP},
		{"nginx, Forwarded", w.nginx + ":8003", forwarded},
		{"nginx, BehindProxies", w.nginx + ":8004", xff},
		{"nginx over a unix socket, BehindProxies", w.nginx + ":8005", xff},
		{"HAProxy, XForwardedFor", w.haproxy + ":8001", xff},
		{"HAProxy, ProxyHeader", w.haproxy + ":8002", realIP},
		{"HAProxy, Forwarded", w.haproxy + ":8003", forwarded},
		{"HAProxy, BehindProxies", w.haproxy + ":8004", xff},
		{"HAProxy before nginx, XForwardedFor", w.haproxy + ":8011", xff},
		{"HAProxy before nginx, BehindProxies", w.haproxy + ":8012", xff},
		{"nginx before HAProxy, XForwardedFor", w.nginx + ":8011", xff},
		{"nginx before HAProxy, BehindProxies", w.nginx + ":8012", xff},
		{"nginx before net/http, XForwardedFor", w.nginx + ":8021", xff},
		{"net/http, XForwardedFor", w.golang + ":8001", xff},
		{careless, w.golang + ":8002", realIP},
		{"no proxy, XForwardedFor", fmt.Sprint(w.servers, ":", byXFF), xff},
		{"no proxy, ProxyHeader", fmt.Sprint(w.servers, ":", byRealIP), realIP},
		{"no proxy, Forwarded", fmt.Sprint(w.servers, ":", byForwarded), forwarded},
	}
}

// careless is the proxy that removes a header of its own if the client names it in Connection.
const careless = "net/http, ProxyHeader"

// What happens to the requests of an attack. There is no other outcome: nothing that reaches
// a server is ever charged to another address than the client's.
const (
	charged   = iota // they are served, and each is charged to the client's address
	orRefused        // the same, or a proxy or net/http refuses them
	noKey            // the same as charged, but the guard refuses the first behind the careless proxy
	tunnel           // the same as orRefused, and where the first reaches a guard behind a proxy, the guard refuses it
)

// An attack is what a client sends on one connection. In it, HEADER is the field that names
// the client in a deployment, FORGED an element of it with another's address, PROXY an
// element with that of a trusted proxy, and PATH a path of the attack's own.
type attack struct {
	name    string
	send    string
	happens int
}

const (
	host = "Host: a\r\n"
	end  = "Connection: close\r\n\r\n"

	// hidden is the second request of attacks that hide one behind the first.
	hidden = "GET PATH/hidden HTTP/1.1\r\n" + host + "HEADER: FORGED\r\n" + end
)

// get returns a request with some lines.
func get(lines ...string) string {
	return "GET PATH HTTP/1.1\r\n" + host + joined(lines) + end
}

// post returns a request with a body and some lines, and the hidden one behind it.
func post(body string, lines ...string) string {
	return "POST PATH HTTP/1.1\r\n" + host + joined(lines) + "\r\n" + body + hidden
}

func joined(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(line + "\r\n")
	}
	return b.String()
}

// attacks are grouped by what the client would gain.
var attacks = []struct {
	gain string
	rows []attack
}{
	{"nothing: this is how it should be", []attack{
		{"an honest request", get(), charged},
		{"two at once", "GET PATH HTTP/1.1\r\n" + host + "\r\n" + get(), charged},
		{"a preflight", "OPTIONS PATH HTTP/1.1\r\n" + host + "Origin: http://b\r\nAccess-Control-Request-Method: GET\r\n" + end, charged},
		{"a body", post("abcde", "Content-Length: 5"), charged},
		{"a body in chunks", post("5\r\nabcde\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), charged},
		{"a body that is announced", post("abcde", "Content-Length: 5", "Expect: 100-continue"), charged},
		{"HTTP/1.0", "GET PATH HTTP/1.0\r\n" + host + "\r\n", charged},
	}},
	{"an address of its choice: a fresh limit, or the limit of another", []attack{
		{"a forged field", get("HEADER: FORGED"), charged},
		{"twice", get("HEADER: FORGED", "HEADER: FORGED"), charged},
		{"every field", get("X-Forwarded-For: 192.0.2.1", "X-Real-IP: 192.0.2.1", "Forwarded: for=192.0.2.1", "True-Client-IP: 192.0.2.1"), charged},
		{"in capital letters", get("CAPITAL: FORGED"), charged},
		{"a list", get("HEADER: FORGED, FORGED,FORGED"), charged},
		{"IPv6", get("HEADER: 2001:db8::1", `HEADER: for="[2001:db8::1]"`), charged},
		{"unknown", get("HEADER: unknown"), charged},
		{"empty", get("HEADER:"), charged},
		{"empty elements", get("HEADER: FORGED,,, ,"), charged},
		{"an open quote", get(`HEADER: FORGED;x="`), charged},
		{"an open quote and a backslash", get(`HEADER: for="\`), charged},
		{"quotes and commas", get(`HEADER: """"""","`), charged},
		{"not ASCII", get("HEADER: FORGED\xff\xfe"), charged},
		{"4,000 bytes of elements", get("HEADER: " + strings.Repeat("FORGED,", 250)), charged},
		{"an element of 4,000 bytes", get("HEADER: " + strings.Repeat("1", 4000)), charged},
		{"100,000 bytes", get("HEADER: " + strings.Repeat("FORGED,", 8000)), orRefused},
		{"an underscore in the name", get("UNDERSCORE: FORGED"), charged},
		{"a dot in the name", get("DOTTED: FORGED"), charged},
		{"a space before the colon", get("HEADER : FORGED"), orRefused},
		{"a tab before the colon", get("HEADER\t: FORGED"), orRefused},
		{"a space before the name", get("X-Any: a", " HEADER: FORGED"), orRefused},
		{"a space before the first name", "GET PATH HTTP/1.1\r\n HEADER: FORGED\r\n" + host + end, orRefused},
		{"a zero byte in the name", get("HEADER\x00: FORGED"), orRefused},
		{"a zero byte in the value", get("HEADER: FORGED\x00"), orRefused},
		{"no colon", get("HEADER FORGED"), orRefused},
		{"a folded line", get("HEADER:\r\n FORGED"), orRefused},
		{"a line folded after a comma", get("HEADER: FORGED,\r\n\tPROXY"), orRefused},
		{"an empty folded line", get("HEADER:\r\n  "), orRefused},
		{"lines that end in a line feed", "GET PATH HTTP/1.1\nHost: a\nHEADER: FORGED\nConnection: close\n\n", orRefused},
		{"a line that ends in a carriage return", get("X-Any: a\rHEADER: FORGED"), orRefused},
		{"a line in the target", "GET PATH HTTP/1.1\r\nHEADER: FORGED HTTP/1.1\r\n" + host + end, orRefused},
		{"an encoded line in the target", "GET PATH%20HTTP/1.1%0d%0aHEADER:%20FORGED HTTP/1.1\r\n" + host + end, orRefused},
		{"a chunk's extension", post("5;HEADER=FORGED\r\nabcde\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), orRefused},
		{"trailers", post("5\r\nabcde\r\n0\r\nHEADER: FORGED\r\n\r\n", "Transfer-Encoding: chunked", "Trailer: HEADER"), charged},
		{"a line of the PROXY protocol", "PROXY-PROTOCOL TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + get(), orRefused},
		{"the PROXY protocol, version 2", "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x00\x01\x00\x02" + get(), orRefused},
		{"HTTP/1.0", "GET PATH HTTP/1.0\r\n" + host + "HEADER: FORGED\r\n\r\n", charged},
		{"HTTP/0.9", "GET PATH\r\n\r\n", orRefused},
		{"HTTP/2.0 in the first line", "GET PATH HTTP/2.0\r\n" + host + "HEADER: FORGED\r\n" + end, orRefused},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", orRefused},
		{"no Host", "GET PATH HTTP/1.1\r\nHEADER: FORGED\r\n" + end, orRefused},
		{"two Hosts", get("Host: b", "HEADER: FORGED"), orRefused},
		{"the absolute form", "GET http://bPATH HTTP/1.1\r\n" + host + "HEADER: FORGED\r\n" + end, orRefused},
		{"a fragment", "GET PATH#x HTTP/1.1\r\n" + host + "HEADER: FORGED\r\n" + end, orRefused},
		{"the method get", "get PATH HTTP/1.1\r\n" + host + "HEADER: FORGED\r\n" + end, orRefused},
		{"an unknown method", "PURGE PATH HTTP/1.1\r\n" + host + "HEADER: FORGED\r\n" + end, orRefused},
		{"TRACE", "TRACE PATH HTTP/1.1\r\n" + host + "HEADER: FORGED\r\n" + end, orRefused},
		{"OPTIONS *", "OPTIONS * HTTP/1.1\r\n" + host + "HEADER: FORGED\r\n" + end, orRefused},
	}},
	{"the limit of the proxy, which is another than its own", []attack{
		{"the proxy's address", get("HEADER: PROXY"), charged},
		{"behind a forged one", get("HEADER: FORGED, PROXY"), charged},
		{"in two lines", get("HEADER: FORGED", "HEADER: PROXY, PROXY"), charged},
		{"60 lines", get(slices.Repeat([]string{"HEADER: PROXY"}, 60)...), charged},
		{"200 times", get("HEADER: " + strings.Repeat("PROXY,", 200)), charged},
		{"Connection names the field", "GET PATH HTTP/1.1\r\n" + host + "Connection: HEADER, close\r\n\r\n", noKey},
		{"and it is forged", "GET PATH HTTP/1.1\r\n" + host + "HEADER: FORGED\r\nConnection: close, HEADER\r\n\r\n", noKey},
		{"in a line of its own", get("Connection: HEADER"), noKey},
		{"in capital letters", get("CONNECTION: CAPITAL"), noKey},
		{"with all others", get("Connection: X-Real-IP, X-Forwarded-For, Forwarded, Host, Via, X-Forwarded-Host"), noKey},
		{"other fields name it", get("Proxy-Connection: HEADER", "Keep-Alive: HEADER", "TE: HEADER", "Trailer: HEADER"), charged},
		{"Connection names a trailer", post("0\r\nHEADER: FORGED\r\n\r\n", "Transfer-Encoding: chunked", "Trailer: HEADER", "TE: trailers",
			"Connection: TE, Trailer, HEADER"), noKey},
	}},
	{"a request that no proxy reads, and so one with fields of its choice", []attack{
		{"a second request", "GET PATH HTTP/1.1\r\n" + host + "HEADER: FORGED\r\n\r\n" + hidden, charged},
		{"Content-Length and chunks", post("0\r\n\r\n", "Content-Length: LENGTH", "Transfer-Encoding: chunked"), orRefused},
		{"chunks and Content-Length", "POST PATH HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n" + end + "SIZE\r\n" + hidden + "\r\n0\r\n\r\n", orRefused},
		{"another coding", post("0\r\n\r\n", "Transfer-Encoding: xchunked", "Content-Length: 5"), orRefused},
		{"no coding", post("", "Transfer-Encoding: identity"), orRefused},
		{"two codings", post("0\r\n\r\n", "Transfer-Encoding: chunked", "Transfer-Encoding: identity", "Content-Length: 5"), orRefused},
		{"a list of codings", post("0\r\n\r\n", "Transfer-Encoding: identity, chunked", "Content-Length: 5"), orRefused},
		{"a tab before the coding", post("0\r\n\r\n", "Transfer-Encoding:\tchunked", "Content-Length: 5"), orRefused},
		{"a vertical tab before it", post("0\r\n\r\n", "Transfer-Encoding: \x0bchunked", "Content-Length: 5"), orRefused},
		{"a space before the colon", post("0\r\n\r\n", "Transfer-Encoding : chunked", "Content-Length: 5"), orRefused},
		{"the coding on a folded line", post("0\r\n\r\n", "Transfer-Encoding:\r\n chunked", "Content-Length: 5"), orRefused},
		{"the coding after a carriage return", post("0\r\n\r\n", "X-Any: a\rTransfer-Encoding: chunked", "Content-Length: 5"), orRefused},
		{"a coding in HTTP/1.0", "POST PATH HTTP/1.0\r\n" + host + "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + hidden, orRefused},
		{"Connection names the coding", post("0\r\n\r\n", "Transfer-Encoding: chunked", "Connection: Transfer-Encoding"), orRefused},
		{"Connection names the length", post("abcde", "Content-Length: 5", "Connection: Content-Length"), orRefused},
		{"two lengths", post("abcde", "Content-Length: 0", "Content-Length: 5"), orRefused},
		{"a list of lengths", post("abcde", "Content-Length: 5, 5"), orRefused},
		{"a length with a sign", post("abcde", "Content-Length: +5"), orRefused},
		{"a length above 2^64", post("abcde", "Content-Length: 18446744073709551621"), orRefused},
		{"a body of GET", "GET PATH HTTP/1.1\r\n" + host + "Content-Length: 5\r\n\r\nabcde" + hidden, charged},
		{"a chunk's size with a sign", post("+5\r\nabcde\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), orRefused},
		{"a chunk's size above 2^64", post("10000000000000005\r\nabcde\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), orRefused},
		{"chunks that end in a line feed", post("5\nabcde\n0\n\n", "Transfer-Encoding: chunked"), orRefused},
		{"an upgrade to WebSocket", "GET PATH HTTP/1.1\r\n" + host + "Connection: Upgrade, HEADER\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
			"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nHEADER: FORGED\r\n\r\n" + hidden, noKey},
		{"an upgrade to HTTP/2", "GET PATH HTTP/1.1\r\n" + host + "Connection: Upgrade, HTTP2-Settings, HEADER\r\nUpgrade: h2c\r\n" +
			"HTTP2-Settings: AAMAAABkAAQAAP__\r\nHEADER: FORGED\r\n\r\n" + hidden, noKey},
		{"CONNECT", "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nHEADER: FORGED\r\n\r\n" + hidden, tunnel},
	}},
}

// fill returns what an attack sends to a deployment.
func (w *world) fill(d deployment, text, path string) string {
	element, proxy := forged, w.nginx
	if d.header == forwarded {
		element, proxy = "for="+forged, "for="+w.nginx
	}
	names := []string{
		"PROXY-PROTOCOL", "PROXY", "HEADER", d.header, "FORGED", element, "PROXY", proxy, "PATH", path,
		"CAPITAL", strings.ToUpper(d.header), "UNDERSCORE", strings.ReplaceAll(d.header, "-", "_"), "DOTTED", strings.ReplaceAll(d.header, "-", "."),
	}
	n := len(strings.NewReplacer(names...).Replace(hidden))
	names = append(names, "LENGTH", strconv.Itoa(len("0\r\n\r\n")+n), "Content-Length: 4", fmt.Sprint("Content-Length: ", len("SIZE\r\n")), "SIZE", fmt.Sprintf("%04x", n))
	return strings.NewReplacer(names...).Replace(text)
}

// refused is the outcome of a request that no guard saw.
const refused = "refused"

// send sends an attack and returns the outcome of each request: the key, or "no key", or
// refused.
func (w *world) send(t *testing.T, d deployment, a attack, path string) []string {
	t.Helper()
	c := dial(t, client, d.addr)
	defer c.Close()
	_, _ = c.Write([]byte(w.fill(d, a.send, path))) // a proxy may answer and close before it has read all
	var outcomes []string
	for in := bufio.NewReader(c); ; {
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			return outcomes
		}
		_, err = io.Copy(io.Discard, response.Body)
		switch keys := response.Header["Charged"]; {
		case len(keys) == 1:
			outcomes = append(outcomes, keys[0])
		case response.StatusCode >= 200:
			outcomes = append(outcomes, refused)
		}
		if err != nil {
			return outcomes
		}
	}
}

// as reports whether what happened is what should happen.
func (a attack) as(d deployment, outcomes []string) bool {
	want := slices.Repeat([]string{client}, strings.Count(a.send, " HTTP/1."))
	switch {
	case a.happens == noKey && d.name == careless:
		want[0] = "no key"
		return slices.Equal(outcomes, want)
	case a.happens == noKey, a.happens == charged:
		return slices.Equal(outcomes, want)
	}
	return !slices.ContainsFunc(outcomes, func(o string) bool {
		return o != client && o != refused && (a.happens != tunnel || o != "no key")
	})
}

// What a client writes changes neither its key nor that of another, in any deployment.
func TestAttacks(t *testing.T) {
	w := newWorld(t)
	t.Run("deployments", func(t *testing.T) {
		for i, d := range w.deployments() {
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				n := 0
				for _, group := range attacks {
					for _, a := range group.rows {
						n++
						if outcomes := w.send(t, d, a, fmt.Sprintf("/%d/%d", i, n)); !a.as(d, outcomes) {
							t.Errorf("to gain %s: %s: %q", group.gain, a.name, outcomes)
						}
					}
				}
			})
		}
	})
	w.stop()
	for path, keys := range w.recorded { // among them what was never answered
		for _, key := range keys {
			if key != client && key != "no key" {
				t.Errorf("%s: charged %s", path, key)
			}
		}
	}
	if n := len(w.recorded); n < 1000 {
		t.Errorf("only %d paths have reached a server", n)
	}
}

// A weakness that the comment of XForwardedFor states: an inner proxy that obeys the client's
// Connection removes what an outer one wrote, if that passes Connection on. What is left
// looks like a client at the outer proxy. BehindProxies misses an element.
func TestConnectionThroughTwoProxies(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ addr, connection, want string }{
		{w.haproxy + ":8021", "close", client},
		{w.haproxy + ":8021", "close, X-Forwarded-For", w.haproxy},
		{w.haproxy + ":8023", "close", client},
		{w.haproxy + ":8023", "close, X-Forwarded-For", "no key"},
		{w.nginx + ":8021", "close, X-Forwarded-For", client}, // nginx does not pass it on
	} {
		d := deployment{addr: c.addr, header: xff}
		a := attack{send: "GET PATH HTTP/1.1\r\n" + host + "Connection: " + c.connection + "\r\n\r\n"}
		if got := w.send(t, d, a, "/"); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s, Connection: %s: charged %q, not %q", c.addr, c.connection, got, c.want)
		}
	}
}

// A proxy that names no client is not charged: that is a health check, or a proxy that is not
// configured as the key function expects.
func TestProxyWithoutField(t *testing.T) {
	w := newWorld(t)
	for _, port := range []int{byXFF, byRealIP, byForwarded, byCount1} {
		for _, proxy := range []string{w.nginx, w.haproxy} {
			c := dial(t, proxy, fmt.Sprint(w.servers, ":", port))
			io.WriteString(c, strings.ReplaceAll(get(), "PATH", "/healthz"))
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if key := response.Header.Get("Charged"); response.StatusCode != 400 || key != "no key" {
				t.Errorf("port %d: %s, charged %q", port, response.Status, key)
			}
		}
	}
}

// Connections that a proxy keeps to the server serve many clients, each under its own key.
func TestClientsShareConnections(t *testing.T) {
	w := newWorld(t)
	for _, d := range w.deployments() {
		for i := range 10 {
			from := fmt.Sprint("127.9.9.", 1+i%3)
			c := dial(t, from, d.addr)
			io.WriteString(c, strings.ReplaceAll(get(), "PATH", "/"))
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if key := response.Header.Get("Charged"); key != from {
				t.Errorf("%s: %s was charged as %s", d.name, from, key)
			}
			_ = c.Close()
		}
	}
}

// Addresses as a balancer in front of the proxies gives them by the PROXY protocol: all
// spellings of one have one key, also those that a client can choose among.
func TestAddresses(t *testing.T) {
	w := newWorld(t)
	for address, want := range map[string]string{
		"TCP4 203.0.113.7 127.0.0.1":                    "203.0.113.7",
		"TCP6 2001:db8:1:2:3:4:5:6 ::1":                 "2001:db8:1:2::/64",
		"TCP6 2001:db8:1:2:ffff:: ::1":                  "2001:db8:1:2::/64",
		"TCP6 2001:DB8:0001:0002::0 ::1":                "2001:db8:1:2::/64",
		"TCP6 ::ffff:203.0.113.7 ::1":                   "203.0.113.7",
		"TCP6 64:ff9b::cb00:7107 ::1":                   "203.0.113.7",
		"TCP6 2002:cb00:7107::1 ::1":                    "203.0.113.7",
		"TCP6 2002:cb00:7107:ffff:: ::1":                "203.0.113.7",
		"TCP6 2001:0:4136:e378:8000:63bf:34ff:8ef8 ::1": "203.0.113.7",
		"TCP6 2001:0:203:405:8000:63bf:34ff:8ef8 ::1":   "203.0.113.7",
		"TCP6 2001:db8:1:2:0:5efe:203.0.113.7 ::1":      "2001:db8:1:2::/64",
	} {
		for _, proxy := range []string{w.nginx, w.haproxy} {
			for port, header := range map[string]string{":8041": xff, ":8042": realIP, ":8043": forwarded} {
				d := deployment{addr: proxy + port, header: header}
				a := attack{send: "PROXY-PROTOCOL " + address + " 1 2\r\n" + get("HEADER: FORGED")}
				if got := w.send(t, d, a, "/"); !slices.Equal(got, []string{want}) {
					t.Errorf("%s by %s to %s: charged %q, not %s", address, header, d.addr, got, want)
				}
			}
		}
	}
}

// A signed cookie is charged wherever it stands among others, and a forged one never.
func TestCookies(t *testing.T) {
	w := newWorld(t)
	const name, other = "__Host-id=", "AQAAANxqz6wAAAECAwQFBgcICQoLDA0ODyQorwfExh0izsmbRUVOd0k_xVfhTyd1hzmeR4oSBbNf"
	genuine := cookie(t).New(time.Now()).Value
	r, _ := http.NewRequest("GET", "/", nil)
	r.AddCookie(&http.Cookie{Name: "__Host-id", Value: genuine})
	id, err := cookie(t).Key(r)
	if err != nil {
		t.Fatal(err)
	}
	byCookie, byAddress := "cookie:"+id, "ip:"+client
	for _, c := range []struct {
		lines []string
		want  string
	}{
		{nil, byAddress},
		{[]string{name + genuine}, byCookie},
		{[]string{name + `"` + genuine + `"`}, byCookie},
		{[]string{name + other}, byAddress},
		{[]string{name + other + "; " + name + genuine}, byCookie},
		{[]string{name + other, name + genuine}, byCookie},
		{[]string{name + genuine, name + other}, byCookie},
		{[]string{"a=b", name + genuine + ";c=d"}, byCookie},
		{[]string{name + genuine[:75]}, byAddress},
		{[]string{name + genuine + "=="}, byAddress},
		{[]string{name + "%41" + genuine[1:]}, byAddress},
		{[]string{name + genuine + ", " + name + genuine}, byAddress}, // not how cookies are joined
		{[]string{strings.Repeat(name+other+"; ", 4) + name + genuine}, byAddress},
	} {
		for _, addr := range []string{w.nginx + ":8006", w.haproxy + ":8006"} {
			var lines []string
			for _, line := range c.lines {
				lines = append(lines, "Cookie: "+line)
			}
			if got := w.send(t, deployment{addr: addr, header: xff}, attack{send: get(lines...)}, "/"); !slices.Equal(got, []string{c.want}) {
				t.Errorf("%s: %q: charged %q, not %q", addr, c.lines, got, c.want)
			}
		}
	}
}

// Over HTTP/2, where each field is one of a list and cookies are crumbled.
func TestHTTP2(t *testing.T) {
	w := newWorld(t)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := w.transport(client)
	transport.Protocols = protocols
	genuine := cookie(t).New(time.Now())
	for _, proxy := range []string{w.nginx, w.haproxy} {
		for _, header := range []http.Header{
			{},
			{xff: {forged}},
			{xff: {forged, w.nginx}},
			{xff: {forged, ""}},
			{"X_Forwarded_For": {forged}},
			{realIP: {forged}, forwarded: {"for=" + forged}},
			{"Te": {"trailers"}, xff: {forged}},
		} {
			for port, want := range map[string]string{":8031": client, ":8032": "cookie:"} {
				r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+proxy+port+"/", nil)
				if err != nil {
					t.Fatal(err)
				}
				maps.Copy(r.Header, header)
				r.AddCookie(&http.Cookie{Name: "a", Value: "b"})
				r.AddCookie(genuine)
				response, err := transport.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				if key := response.Header.Get("Charged"); response.ProtoMajor != 2 || key != want && (want == client || !strings.HasPrefix(key, want)) {
					t.Errorf("%s%s: %v: %s charged %q, not %q", proxy, port, header, response.Proto, key, want)
				}
			}
		}
	}
}
