package proxies

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c" //nolint:staticcheck // deprecated, and what is attacked
	"golang.org/x/net/http2/hpack"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// limit is what each client may send in an hour to each path of an API.
const limit = 3

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	m.Run()
}

// An api is what the servers have behind the guards: a path for each key function, below which a
// request is served if its client has sent no more than limit.
type api map[string]*nethttp.Guard

// byName returns the key functions that believe proxies.
func byName(proxies []string) map[string]keyfuncs.Func {
	return map[string]keyfuncs.Func{
		"XForwardedFor": keyfuncs.XForwardedFor(proxies...),
		"ProxyHeader":   keyfuncs.ProxyHeader(realIP, proxies...),
		"Forwarded":     keyfuncs.Forwarded(proxies...),
		"BehindProxies": keyfuncs.BehindProxies(1),
	}
}

func newAPI(proxies []string) api {
	a := make(api)
	for name, key := range byName(proxies) {
		a[name] = nethttp.Limit(new(core.MemoryStore), "api", key, core.SlidingLog(limit, time.Hour))
	}
	return a
}

func (a api) nethttp() http.Handler {
	mux := http.NewServeMux()
	for name, guard := range a {
		mux.Handle("/"+name+"/", guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	}
	return mux
}

func (a api) gin() *gin.Engine {
	engine := gin.New()
	for name, guard := range a {
		engine.Group("/"+name, ginmw.Middleware(guard)).GET("/*path", func(c *gin.Context) { c.Status(http.StatusOK) })
	}
	return engine
}

func (a api) echo() *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	for name, guard := range a {
		e.Group("/"+name, echomw.Middleware(guard)).GET("/*", func(c echo.Context) error { return c.NoContent(http.StatusOK) })
	}
	return e
}

func (a api) echov5() *echov5.Echo {
	e := echov5.New()
	for name, guard := range a {
		e.Group("/"+name, echov5mw.Middleware(guard)).GET("/*", func(c *echov5.Context) error { return c.NoContent(http.StatusOK) })
	}
	return e
}

// A backend is a server of an API.
type backend struct {
	name     string
	upgrades bool // to HTTP/2 by a handler, of which net/http does not know
	tls      bool
	alpn     bool     // it has HTTP/2 over TLS
	schemes  []string // that its proxy may name in HTTP/2
	serve    func(a api, l net.Listener) io.Closer
}

func unencrypted() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// serving runs a server.
func serving(s *http.Server, l net.Listener) io.Closer {
	go func() { _ = s.Serve(l) }()
	return s
}

func server(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
}

// upgrading is how HTTP/2 without TLS was served before http.Server could.
func upgrading(h http.Handler) http.Handler {
	return h2c.NewHandler(h, &http2.Server{}) //nolint:staticcheck // what is attacked
}

// encrypted runs a server that has a certificate of httptest's.
func encrypted(s *httptest.Server, config *http.Server, l net.Listener) io.Closer {
	s.Listener, s.Config = l, config
	s.StartTLS()
	return config
}

var backends = []backend{
	{name: "net/http with Protocols", serve: func(a api, l net.Listener) io.Closer {
		s := server(a.nethttp())
		s.Protocols = unencrypted()
		return serving(s, l)
	}},
	{name: "Gin with Protocols", serve: func(a api, l net.Listener) io.Closer {
		s := server(a.gin())
		s.Protocols = unencrypted()
		return serving(s, l)
	}},
	{name: "Echo with Protocols", serve: func(a api, l net.Listener) io.Closer {
		e := a.echo()
		e.Listener, e.Server.Protocols = l, unencrypted()
		go func() { _ = e.StartServer(e.Server) }()
		return e
	}},
	// With Go 1.27, requests of the scheme http do not tell that there is TLS.
	{name: "net/http over TLS", tls: true, alpn: true, schemes: []string{"https"}, serve: func(a api, l net.Listener) io.Closer {
		return encrypted(&httptest.Server{EnableHTTP2: true}, server(a.nethttp()), l)
	}},
	{name: "net/http over TLS with Protocols", tls: true, alpn: true, serve: func(a api, l net.Listener) io.Closer {
		s := server(a.nethttp())
		s.Protocols = unencrypted()
		s.Protocols.SetHTTP2(true)
		return encrypted(&httptest.Server{EnableHTTP2: true}, s, l)
	}},
	{name: "h2c.NewHandler", upgrades: true, serve: func(a api, l net.Listener) io.Closer {
		return serving(server(upgrading(a.nethttp())), l)
	}},
	{name: "Gin's UseH2C", upgrades: true, serve: func(a api, l net.Listener) io.Closer {
		engine := a.gin()
		engine.UseH2C = true
		return serving(server(engine.Handler()), l)
	}},
	{name: "Echo's StartH2CServer", upgrades: true, serve: func(a api, l net.Listener) io.Closer {
		e := a.echo()
		e.Listener = l
		go func() { _ = e.StartH2CServer("", &http2.Server{}) }()
		return e
	}},
	{name: "h2c.NewHandler around Echo v5", upgrades: true, serve: func(a api, l net.Listener) io.Closer {
		return serving(server(upgrading(a.echov5())), l)
	}},
	{name: "h2c.NewHandler over TLS", upgrades: true, tls: true, serve: func(a api, l net.Listener) io.Closer {
		return encrypted(&httptest.Server{}, server(upgrading(a.nethttp())), l)
	}},
}

// A front is a way to all backends; those in front of port 8100 have port 8100+i to backends[i].
type front struct {
	name   string
	addr   string
	port   int
	passes bool // upgrades to HTTP/2
}

func (w *world) fronts() []front {
	return []front{
		{"HAProxy", w.haproxy, 8100, true},
		{"HAProxy that removes Upgrade: h2c", w.haproxy, 8200, false},
		{"nginx with $connection_upgrade", w.nginx, 8100, false},
		{"nginx with $http_connection", w.nginx, 8200, true},
		{"nginx with $websocket", w.nginx, 8300, false},
		{"net/http", w.golang, 8100, false},
	}
}

// newH2CWorld starts backends and what is in front of them.
func newH2CWorld(t *testing.T, backends ...backend) *world {
	t.Helper()
	nginx, haproxy := program(t, "nginx"), program(t, "haproxy")
	w := newAddresses(t)
	var (
		nginxConf, haproxyConf strings.Builder
		addrs                  []string
	)
	nginxConf.WriteString(nginxHead + `
	map $http_upgrade $websocket { default ""; ~*^websocket$ websocket; }
	map $websocket $connection_websocket { default upgrade; "" ""; }
`)
	haproxyConf.WriteString(haproxyHead)
	for i, b := range backends {
		to := fmt.Sprint(w.servers, ":", 8100+i)
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		s := b.serve(newAPI(w.proxies()), l)
		t.Cleanup(func() { _ = s.Close() })

		w.serve(server(w.forwarding(b, to)), "tcp", fmt.Sprint(w.golang, ":", 8100+i))
		w.nginxTo(&nginxConf, b, 8100+i, to, "$http_upgrade", "$connection_upgrade")
		w.nginxTo(&nginxConf, b, 8200+i, to, "$http_upgrade", "$http_connection")
		w.nginxTo(&nginxConf, b, 8300+i, to, "$websocket", "$connection_websocket")
		over, overHTTP2 := "", "proto h2"
		if b.tls {
			over, overHTTP2 = "ssl verify none", "ssl verify none alpn h2"
		}
		w.haproxyTo(&haproxyConf, 8100+i, "", to, over)
		w.haproxyTo(&haproxyConf, 8200+i, "http-request del-header Upgrade if { req.hdr(Upgrade) -i h2c }", to, over)
		w.haproxyTo(&haproxyConf, 8300+i, "", to, overHTTP2)
		for _, port := range []int{8100, 8200, 8300} {
			addrs = append(addrs, fmt.Sprint(w.nginx, ":", port+i), fmt.Sprint(w.haproxy, ":", port+i))
		}
	}
	nginxConf.WriteString("}\n")
	w.startProxies(nginx, nginxConf.String(), haproxy, haproxyConf.String(), addrs)
	return w
}

func (w *world) nginxTo(b *strings.Builder, to backend, port int, addr, upgrade, connection string) {
	scheme := "http"
	if to.tls {
		scheme = "https"
	}
	fmt.Fprintf(b, `
	server {
		listen %[1]s:%d;
		location / {
			proxy_bind %[1]s;
			proxy_pass %[3]s://%s;
			proxy_set_header Upgrade %s;
			proxy_set_header Connection %s;
			proxy_set_header %s;
			proxy_set_header %s;
			proxy_set_header %s;
		}
	}
`, w.nginx, port, scheme, addr, upgrade, connection, nginxList, nginxSingle, nginxPairs)
}

func (w *world) haproxyTo(b *strings.Builder, port int, rule, addr, options string) {
	fmt.Fprintf(b, `
listen l%[1]d
	bind %s:%[1]d
	%[3]s
	%s
	%s
	%s
	server s %s source %[2]s %[8]s
`, port, w.haproxy, haproxyList, haproxySingle, haproxyPairs, rule, addr, options)
}

// forwarding is the usual proxy of net/http.
func (w *world) forwarding(to backend, addr string) http.Handler {
	target := &url.URL{Scheme: "http", Host: addr}
	transport := w.transport(w.golang)
	if to.tls {
		target.Scheme = "https"
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	}
	return &httputil.ReverseProxy{Transport: transport, ErrorLog: silent, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Header[xff] = r.In.Header[xff]
		r.SetXForwarded()
		from, _, _ := net.SplitHostPort(r.In.RemoteAddr)
		r.Out.Header.Set(realIP, from)
		r.Out.Header[forwarded] = slices.Concat(r.In.Header[forwarded], []string{"for=" + from})
	}}
}

// lies returns the fields of a forged request, other ones for each i.
func lies(i int) [][2]string {
	address := fmt.Sprint("192.0.2.", i)
	return [][2]string{{xff, address}, {realIP, address}, {forwarded, "for=" + address}}
}

// A visit is a client with an address of its own, and what its requests have.
type visit struct {
	net.Conn

	in      *bufio.Reader
	path    string
	schemes []string // of HTTP/2, in turn
}

// over1 sends requests over HTTP/1.1 and returns their statuses. Those after fields
// have them.
func (v visit) over1(n int, lie bool, lines ...string) []string {
	var statuses []string
	for i := range n {
		head := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: a\r\n%s", v.path, joined(lines))
		if lie {
			for _, field := range lies(i) {
				head += field[0] + ": " + field[1] + "\r\n"
			}
		}
		_, _ = io.WriteString(v, head+"\r\n")
		response, err := http.ReadResponse(v.in, nil)
		if err != nil {
			return statuses
		}
		if response.StatusCode != http.StatusSwitchingProtocols {
			_, _ = io.Copy(io.Discard, response.Body)
		}
		statuses = append(statuses, strconv.Itoa(response.StatusCode))
	}
	return statuses
}

// over2 sends n requests on streams of HTTP/2 and returns the statuses of all that are
// answered. If the connection was upgraded, the answer to the request before is one of them.
func (v visit) over2(n int, lie, upgraded bool) []string {
	framer := http2.NewFramer(v, v.in)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, _ = io.WriteString(v, http2.ClientPreface)
	_ = framer.WriteSettings()
	first, want := 0, n
	if upgraded {
		first, want = 1, n+1
	}
	for i := range n {
		var block bytes.Buffer
		fields := hpack.NewEncoder(&block)
		for _, f := range [][2]string{{":method", "GET"}, {":scheme", v.schemes[i%len(v.schemes)]}, {":authority", "a"}, {":path", v.path}} {
			_ = fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		if lie {
			for _, f := range lies(i) {
				_ = fields.WriteField(hpack.HeaderField{Name: strings.ToLower(f[0]), Value: f[1]})
			}
		}
		id := uint32(2*(first+i) + 1)
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	}
	var statuses []string
	for ended := 0; ended < want; {
		frame, err := framer.ReadFrame()
		if err != nil {
			return statuses
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			statuses = append(statuses, f.PseudoValue("status"))
			if f.StreamEnded() {
				ended++
			}
		case *http2.DataFrame:
			if f.StreamEnded() {
				ended++
			}
		case *http2.RSTStreamFrame:
			ended++
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		}
	}
	return statuses
}

func count(statuses []string, status string) int {
	n := 0
	for _, s := range statuses {
		if s == status {
			n++
		}
	}
	return n
}

// upgrade are the lines of a request that asks for HTTP/2.
var upgrade = []string{"Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"}

// visits returns a function that connects from a new address each time.
func visits() func(t *testing.T, addr, path string) visit {
	n := 0
	return func(t *testing.T, addr, path string) visit {
		t.Helper()
		n++
		c := dial(t, fmt.Sprintf("127.8.%d.%d", n/250, 1+n%250), addr)
		return visit{c, bufio.NewReader(c), path, []string{"http", "https"}}
	}
}

// No client gets more than its limit because it can have a server read HTTP/2 that no proxy has
// read. Over HTTP/1.1 it gets its limit.
func TestHTTP2WithoutTLS(t *testing.T) {
	w := newH2CWorld(t, backends...)
	visiting := visits()
	for _, f := range w.fronts() {
		for i, b := range backends {
			for name := range byName(w.proxies()) {
				t.Run(fmt.Sprintf("%s/%s/%s", f.name, b.name, name), func(t *testing.T) {
					addr, path := fmt.Sprint(f.addr, ":", f.port+i), "/"+name+"/"
					for _, lie := range []bool{false, true} {
						got := visiting(t, addr, path).over1(5, lie)
						if !slices.Equal(got, []string{"200", "200", "200", "429", "429"}) {
							t.Errorf("over HTTP/1.1: %q", got)
						}
					}

					if got := visiting(t, addr, path).over2(20, true, false); count(got, "200") > limit {
						t.Errorf("over HTTP/2 without asking: %q", got)
					}

					v := visiting(t, addr, path)
					got := v.over1(1, true, upgrade...)
					if upgraded := slices.Equal(got, []string{"101"}); upgraded != (f.passes && b.upgrades) {
						t.Errorf("an upgrade is answered with %q", got)
					} else if upgraded {
						// The first request is that which the proxy has read.
						if got := v.over2(20, true, true); count(got, "200") > 1 || count(got, "400") < 20 {
							t.Errorf("after an upgrade: %q", got)
						}
					}
				})
			}
		}
	}
}

// Whoever connects by itself is charged under its own address.
func TestHTTP2WithoutTLSAndProxy(t *testing.T) {
	w := newH2CWorld(t, backends...)
	visiting := visits()
	for i, b := range backends {
		for name := range byName(w.proxies()) {
			if name == "BehindProxies" || b.tls {
				continue // it would believe, and the client speaks no TLS
			}
			addr, path := fmt.Sprint(w.servers, ":", 8100+i), "/"+name+"/"
			if got := visiting(t, addr, path).over2(20, true, false); count(got, "200") != limit || count(got, "429") != 17 {
				t.Errorf("%s, %s: over HTTP/2: %q", b.name, name, got)
			}
			v := visiting(t, addr, path)
			if got := v.over1(1, true, upgrade...); b.upgrades {
				if got := v.over2(20, true, true); count(got, "200") != limit || count(got, "429") != 18 {
					t.Errorf("%s, %s: after an upgrade: %q", b.name, name, got)
				}
			} else if !slices.Equal(got, []string{"200"}) {
				t.Errorf("%s, %s: an upgrade is answered with %q", b.name, name, got)
			}
		}
	}
}

// A proxy may speak HTTP/2 to a server that reads it itself, with TLS or without.
func TestProxySpeaksHTTP2(t *testing.T) {
	w := newH2CWorld(t, backends...)
	visiting := visits()
	for i, b := range backends {
		if b.tls && !b.alpn {
			continue
		}
		for name := range byName(w.proxies()) {
			for _, lie := range []bool{false, true} {
				addr, path := fmt.Sprint(w.haproxy, ":", 8300+i), "/"+name+"/"
				over2 := visiting(t, addr, path)
				if b.schemes != nil {
					over2.schemes = b.schemes
				}
				for _, got := range [][]string{visiting(t, addr, path).over1(5, lie), over2.over2(5, lie, false)} {
					served, refused := limit, "429"
					if b.upgrades {
						served, refused = 0, "400"
					}
					if count(got, "200") != served || count(got, refused) != 5-served {
						t.Errorf("%s, %s: %q", b.name, name, got)
					}
				}
			}
		}
	}
}

// What SECURITY.md says does not hold: a proxy passes on what it does not read, and the server
// cannot tell.
func TestTunnelsThatCannotBeTold(t *testing.T) {
	w := newH2CWorld(t, backend{name: "both", serve: func(a api, l net.Listener) io.Closer {
		s := server(upgrading(a.nethttp()))
		s.Protocols = unencrypted()
		return serving(s, l)
	}}, backend{name: "101 and CONNECT", serve: func(a api, l net.Listener) io.Closer {
		next := a.nethttp()
		return serving(server(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			protocol := r.Header.Get("Upgrade")
			switch {
			case r.Method == http.MethodConnect:
			case protocol != "":
				rw.Header().Set("Connection", "Upgrade")
				rw.Header().Set("Upgrade", protocol)
				rw.WriteHeader(http.StatusSwitchingProtocols)
			default:
				next.ServeHTTP(rw, r)
			}
		})), l)
	}})
	visiting := visits()
	for i, after := range []func(v visit) []string{
		func(v visit) []string { return v.over2(20, true, true) },
		func(v visit) []string { return v.over1(20, true) },
	} {
		v := visiting(t, fmt.Sprint(w.haproxy, ":", 8100+i), "/XForwardedFor/")
		if got := v.over1(1, true, upgrade...); !slices.Equal(got, []string{"101"}) {
			t.Errorf("an upgrade is answered with %q", got)
		} else if got := after(v); count(got, "200") < 20 {
			t.Errorf("SECURITY.md is out of date: after an upgrade: %q", got)
		}
		// HAProxy removes this upgrade by the rule of the documentation.
		v = visiting(t, fmt.Sprint(w.haproxy, ":", 8200+i), "/XForwardedFor/")
		if got := v.over1(1, true, upgrade...); !slices.Equal(got, []string{"200"}) {
			t.Errorf("an upgrade that HAProxy removes is answered with %q", got)
		}
	}
	v := visiting(t, fmt.Sprint(w.haproxy, ":", 8101), "/XForwardedFor/")
	_, _ = io.WriteString(v, "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n")
	if response, err := http.ReadResponse(v.in, &http.Request{Method: http.MethodConnect}); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("CONNECT is answered with %v, %v", response, err)
	} else if got := v.over1(20, true); count(got, "200") < 20 {
		t.Errorf("SECURITY.md is out of date: after CONNECT: %q", got)
	}
}
