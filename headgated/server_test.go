package headgated_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/headgated"
	oldlimits "github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/limits"
)

// serve serves until the test ends, or stop is called, which returns the error of Serve.
func serve(t testing.TB, s *headgated.Server) (addrs headgated.Addrs, stop func() error) {
	t.Helper()
	addrs, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return addrs, stop
}

const charge = `{"charges": [{"limit": "api", "key": "anna"}]}`

// A document that is at fault changes nothing, and one that is right keeps what was used.
func TestReload(t *testing.T) {
	p, l := newPage(simple), &log{}
	s := open(t, headgated.Config{Document: p.load, Logger: slog.New(slog.NewTextHandler(l, nil))})
	left := func(want int64) {
		t.Helper()
		if _, got := post(t, s.HTTP(), "/v1/check", charge); got.Remaining != want {
			t.Errorf("%d are left, not %d", got.Remaining, want)
		}
	}
	debug := func() string {
		w := httptest.NewRecorder()
		s.Admin().ServeHTTP(w, httptest.NewRequest("GET", "/debug/headgate/", nil))
		return w.Body.String()
	}
	post(t, s.HTTP(), "/v1/charge", charge)
	left(1)
	for _, broken := range []string{"", "limits: {}", strings.Replace(simple, "2/hour", "2/houri", 1), simple + "routes: [{charge: [{limit: ap, key: address}]}]"} {
		p.text.Store(broken)
		err := s.Reload(t.Context())
		var faults oldlimits.Faults
		if !errors.As(err, &faults) {
			t.Errorf("%q: %v", broken, err)
		}
		left(1)
		if page := debug(); !strings.Contains(page, "The new configuration is not in force") {
			t.Error(page)
		}
	}
	if m := metric(t, s, "headgated_reload_"); !strings.Contains(m, `headgated_reload_failing{what="document"} 1`) || !strings.Contains(m, `headgated_reload_failures_total{what="document"} 4`) {
		t.Error(m)
	}
	p.text.Store(strings.Replace(simple, "2/hour", "4/hour", 1) + "routes: [{charge: [{limit: api, key: everyone}]}]")
	if err := s.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	left(3)
	if m := metric(t, s, "headgated_reload_failing"); !strings.Contains(m, `{what="document"} 0`) {
		t.Error(m)
	}
	if page := debug(); strings.Contains(page, "not in force") || !strings.Contains(l.String(), "applies again") {
		t.Errorf("%s\n%s", page, l)
	}
	p.text.Store("limits: {other: {plans: {all: fixed-window 1/day}}}") // a limit that is gone is unknown
	if err := s.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w, _ := post(t, s.HTTP(), "/v1/charge", charge); w.Code != 404 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A file that is replaced by swapping a symbolic link, as that of a ConfigMap, is read.
func TestFileIsWatched(t *testing.T) {
	dir := t.TempDir()
	place := func(version, text string) {
		t.Helper()
		must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, version, "headgated.yaml"), []byte(text), 0o600))
		must(t, os.Symlink(version, filepath.Join(dir, "next")))
		must(t, os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "data")))
	}
	place("1", simple)
	s := open(t, headgated.Config{Document: limits.File(filepath.Join(dir, "data", "headgated.yaml")), HTTP: "127.0.0.1:0"})
	serve(t, s)
	place("2", strings.Replace(simple, "2/hour", "7/hour", 1))
	wait(t, "the new document applies", func() bool {
		_, got := post(t, s.HTTP(), "/v1/check", charge)
		return got.Limit == 7
	})
}

// Requests under load see one document or the other, and no error.
func TestReloadUnderLoad(t *testing.T) {
	p := newPage("")
	text := func(i int) string {
		return fmt.Sprintf("limits: {api: {plans: {all: fixed-window %d/365d}}}\nroutes: [{charge: [{limit: api, key: everyone}]}]", 1_000_000+i)
	}
	p.text.Store(text(0))
	s := open(t, headgated.Config{Document: p.load})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if w, _ := post(t, s.HTTP(), "/v1/charge", charge); w.Code != 200 {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				if w := ask(s, "10.0.0.1:1", "GET", "a", "/"); w.Code != 200 {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			}
		})
	}
	for i := range 50 {
		p.text.Store(text(i))
		must(t, s.Reload(t.Context()))
	}
	close(stop)
	wg.Wait()
}

// A socket has its mode; a file that is none is not replaced, nor one on which somebody listens.
func TestUnixSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "http.sock")
	config := headgated.Config{Document: source(simple), HTTP: "unix:" + path}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}, DisableKeepAlives: true}}
	ask := func() {
		t.Helper()
		r, err := client.Post("http://headgated/v1/charge", "application/json", strings.NewReader(charge))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
	}
	first := open(t, config)
	addrs, stop := serve(t, first)
	if addrs.String() != "grpc=- http=unix:"+path+" admin=-" {
		t.Error(addrs)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v %v", info, err)
	}
	ask()
	if _, err := open(t, config).Listen(); err == nil || !strings.Contains(err.Error(), "another process listens on "+path) {
		t.Errorf("a socket in use: %v", err)
	}
	ask()
	must(t, stop())
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("after the end: %v", err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	stale.SetUnlinkOnClose(false)
	must(t, stale.Close())
	config.SocketMode = 0o600
	_, stop = serve(t, open(t, config))
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	ask()
	must(t, stop())
	must(t, os.WriteFile(path, []byte("precious"), 0o600))
	if _, err := open(t, config).Listen(); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file: %v", err)
	}
	long := config
	long.HTTP = "unix:" + filepath.Join(dir, strings.Repeat("a", 100))
	if _, err := open(t, long).Listen(); err == nil || !strings.Contains(err.Error(), "the path of a socket has at most") {
		t.Errorf("a long path: %v", err)
	}
	if text, err := os.ReadFile(path); string(text) != "precious" {
		t.Errorf("%q %v", text, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

func TestAddresses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	if _, err := open(t, headgated.Config{Document: source(simple), Admin: taken.Addr().String()}).Listen(); err == nil || !strings.Contains(err.Error(), "admin: ") {
		t.Errorf("a port in use: %v", err)
	}
	for addr, want := range map[string]string{
		"0.0.0.0:0": "use TLS, or say -insecure", ":0": "use TLS", "192.0.2.1:80": "use TLS", "example.com:80": "use TLS", "[::]:0": "use TLS",
		"8080": "neither the form", "unix:": "has no path", "/run/a.sock": "neither the form",
		"127.0.0.1:0": "", "localhost:0": "", "[::1]:0": "", "127.9.9.9:0": "",
	} {
		for _, c := range []headgated.Config{{HTTP: addr}, {Admin: addr}} {
			c.Document = source(simple)
			c.Logger = slog.New(slog.DiscardHandler)
			s, err := headgated.New(c)
			if err == nil {
				s.Close()
			}
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", addr, err)
			}
		}
	}
	serve(t, open(t, headgated.Config{Document: source(simple), HTTP: "0.0.0.0:0", Insecure: true}))
}

func TestConfig(t *testing.T) {
	secret := []byte("a-secret-that-nobody-should-see!")
	for want, c := range map[string]headgated.Config{
		"there is no document":                {},
		"a certificate needs its key":         {Document: source(simple), TLS: headgated.TLS{Cert: "a"}},
		"needs a certificate":                 {Document: source(simple), TLS: headgated.TLS{ClientCA: "a"}},
		"need the CA that vouches":            {Document: source(simple), TLS: headgated.TLS{ClientSAN: []string{"a"}}},
		"a name of clients is empty":          {Document: source(simple), TLS: headgated.TLS{ClientSAN: []string{"a", ""}}},
		"negative":                            {Document: source(simple), Drain: -1},
		"can be guessed":                      {Document: source(simple), Secret: []byte("short")},
		"the URL has not the form":            {Document: source(simple), Redis: "redis://user:geheim@host:port"},
		"Timeout of 1µs is below 1 ms":        {Document: source(simple), Redis: "redis://127.0.0.1:1", Timeout: time.Microsecond},
		"a Lease of 1ns is not 1 ms to 1 min": {Document: source(simple), Redis: "redis://127.0.0.1:1", Lease: 1},
		"no such file":                        {Document: limits.File("testdata/none.yaml")},
		"line 1, column 9":                    {Document: source("limits: []")},
	} {
		_, err := headgated.New(c)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", want, err)
		}
	}
	c := headgated.Config{Secret: secret, Redis: "redis://user:geheim@127.0.0.1:1"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if text := fmt.Sprintf(verb, c); strings.Contains(text, "geheim") || strings.Contains(text, string(secret)) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
			t.Errorf("%s: %s", verb, text)
		}
	}
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "config", c)
	if strings.Contains(b.String(), "geheim") || strings.Contains(b.String(), string(secret)) {
		t.Error(b.String())
	}
}

// Requests that have begun are answered when the server stops; new ones are not taken.
func TestDrain(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple), HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"})
	addrs, stop := serve(t, s)
	conn, err := net.Dial("tcp", addrs.HTTP)
	must(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/charge HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(charge))
	buffer := make([]byte, 25)
	_, err = io.ReadFull(conn, buffer) // the handler reads the body: the request has begun
	must(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	wait(t, "the server is not ready", func() bool {
		w := httptest.NewRecorder()
		s.Admin().ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
		return w.Code == 503
	})
	wait(t, "no connection is taken", func() bool {
		c, err := net.Dial("tcp", addrs.HTTP)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	_, err = io.WriteString(conn, charge)
	must(t, err)
	text, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200 OK") {
		t.Errorf("%v %q", err, text)
	}
	must(t, <-stopped)
}

// While a call of one door goes on, no door takes connections but the admin door, which ends last.
func TestDoorsEndTogether(t *testing.T) {
	s := open(t, headgated.Config{Document: source(rules), GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", Drain: time.Hour})
	addrs, stop := serve(t, s)
	takes := func(addr string) bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	conn, err := net.Dial("tcp", addrs.GRPC)
	must(t, err)
	p := newPeer(t, conn)
	_, err = p.open(nil) // it brings no message
	must(t, err)
	p.until(func(f http2.Frame) bool { // whose acknowledgement comes when the call has begun
		if settings, ok := f.(*http2.SettingsFrame); ok && !settings.IsAck() {
			must(t, p.WriteSettingsAck())
			must(t, p.WritePing(false, [8]byte{1}))
		}
		ping, ok := f.(*http2.PingFrame)
		return ok && ping.IsAck()
	})
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	wait(t, "no connection is taken", func() bool { return !takes(addrs.GRPC) && !takes(addrs.HTTP) })
	if !takes(addrs.Admin) {
		t.Error("the admin door has ended first")
	}
	must(t, conn.Close())
	must(t, <-stopped)
	if takes(addrs.Admin) {
		t.Error("the admin door goes on")
	}
}

// A request that takes longer than the drain is cut off, and the server says so.
func TestDrainEnds(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple), HTTP: "127.0.0.1:0", Drain: time.Millisecond})
	addrs, stop := serve(t, s)
	conn, err := net.Dial("tcp", addrs.HTTP)
	must(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/charge HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n")
	_, err = io.ReadFull(conn, make([]byte, 25))
	must(t, err)
	if err := stop(); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Error(err)
	}
}

// An authority makes certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &a.key.PublicKey, a.key)
	must(t, err)
	a.cert, _ = x509.ParseCertificate(der)
	return a
}

// file writes a PEM, and returns its name.
func (a *authority) file(name, kind string, der []byte) string {
	must(a.t, os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return name
}

// issue writes a certificate for a name, and its key.
func (a *authority) issue(dir, name string) (cert, key string) {
	private, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &private.PublicKey, a.key)
	must(a.t, err)
	pkcs, _ := x509.MarshalPKCS8PrivateKey(private)
	return a.file(filepath.Join(dir, name+".crt"), "CERTIFICATE", der), a.file(filepath.Join(dir, name+".key"), "PRIVATE KEY", pkcs)
}

// Clients need a certificate with one of the names; the admin door asks for none. Certificates are read
// again, and those that do not match change nothing.
func TestTLS(t *testing.T) {
	ours, others, dir := newAuthority(t), newAuthority(t), t.TempDir()
	c := headgated.Config{Document: source(simple), HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}
	c.TLS.Cert, c.TLS.Key = ours.issue(dir, "server")
	c.TLS.ClientCA = ours.file(filepath.Join(dir, "ca.crt"), "CERTIFICATE", ours.cert.Raw)
	c.TLS.ClientSAN = []string{"Envoy", "127.0.0.2"}
	s := open(t, c)
	addrs, _ := serve(t, s)
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	get := func(addr, path string, by *authority, name string) (*http.Response, error) {
		config := &tls.Config{RootCAs: roots}
		if by != nil {
			pair, err := tls.LoadX509KeyPair(by.issue(t.TempDir(), name))
			must(t, err)
			config.Certificates = []tls.Certificate{pair}
		}
		r, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, ForceAttemptHTTP2: true}}).Get("https://" + addr + path)
		if err == nil {
			r.Body.Close()
		}
		return r, err
	}
	for _, test := range []struct {
		by   *authority
		name string
		ok   bool
	}{{ours, "envoy", true}, {ours, "envoys", false}, {others, "envoy", false}, {nil, "", false}} {
		if r, err := get(addrs.HTTP, "/v1/auth", test.by, test.name); (err == nil) != test.ok || err == nil && (r.StatusCode != 200 || r.ProtoMajor != 2) {
			t.Errorf("%+v: %v", test, err)
		}
	}
	if r, err := get(addrs.Admin, "/healthz", nil, ""); err != nil || r.StatusCode != 200 {
		t.Errorf("admin: %v", err)
	}
	_, key := ours.issue(t.TempDir(), "server")
	before, err := os.ReadFile(c.TLS.Key)
	must(t, err)
	other, err := os.ReadFile(key)
	must(t, err)
	must(t, os.WriteFile(c.TLS.Key, other, 0o600))
	if err := s.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "private key does not match") {
		t.Errorf("a key of another certificate: %v", err)
	}
	if _, err := get(addrs.HTTP, "/v1/auth", ours, "envoy"); err != nil {
		t.Error(err)
	}
	if _, err := headgated.New(c); err == nil || !strings.Contains(err.Error(), "private key does not match") {
		t.Errorf("at the start: %v", err)
	}
	must(t, os.WriteFile(c.TLS.Key, before, 0o600))
	ours.issue(dir, "server") // another one
	must(t, s.Reload(t.Context()))
	if r, err := get(addrs.Admin, "/healthz", nil, ""); err != nil || r.TLS.PeerCertificates[0].SerialNumber.Cmp(serial(t, c.TLS.Cert)) != 0 {
		t.Errorf("the new certificate: %v", err)
	}
}

func serial(t *testing.T, name string) *big.Int {
	text, err := os.ReadFile(name)
	must(t, err)
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	return cert.SerialNumber
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wait waits until something is so.
func wait(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// No log, no metric and no page has a key or a secret, whatever happens.
func TestNothingIsTold(t *testing.T) {
	l, p := &log{}, newPage(proxied)
	s := open(t, headgated.Config{
		Document: p.load, Logger: slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})), HTTP: "127.0.0.1:0",
		Redis: "redis://geheim:geheim@127.0.0.1:1", Secret: []byte(strings.Repeat("geheim", 6)), Failure: redisstore.FailClosed, Timeout: time.Millisecond,
	})
	addrs, stop := serve(t, s)
	for range 20 {
		post(t, s.HTTP(), "/v1/charge", `{"charges": [{"limit": "api", "key": "geheim"}]}`)
		ask(s, proxy, "GET", "other.example.com", "/geheim", "X-Api-Key", "geheim")
		ask(s, proxy, "GET", "other.example.com", "/geheim")
		ask(s, proxy, "POST", "api.example.com", "/v1/geheim/chat", "Authorization", "Bearer geheim and more")
		ask(s, someone, "POST", "api.example.com", "/v1/geheim/chat")
	}
	for _, broken := range []string{proxied + "geheim: 1", strings.Replace(proxied, "path: /healthz", "path: geheim", 1), "limits: {api: {plans: {all: geheim 1}}}"} {
		p.text.Store(broken)
		if err := s.Reload(t.Context()); err == nil || strings.Contains(err.Error(), "geheim") {
			t.Error(err)
		}
	}
	conn, err := net.Dial("tcp", addrs.HTTP)
	must(t, err)
	fmt.Fprintf(conn, "geheim\r\n\r\n")
	_, _ = io.Copy(io.Discard, conn)
	texts := []string{metric(t, s, ""), fmt.Sprintf("%v %+v %s", s, s, s)}
	for _, path := range []string{"/debug/headgate/", "/debug/headgate/json"} {
		w := httptest.NewRecorder()
		s.Admin().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		texts = append(texts, w.Body.String())
	}
	must(t, stop())
	for _, text := range append(texts, l.String()) {
		if strings.Contains(text, "geheim") {
			t.Error(text)
		}
	}
	if !strings.Contains(l.String(), "requests are refused without a decision") {
		t.Error(l)
	}
}
