// Envoy is an application behind Envoy, which asks headgated about each request.
//
//	go run ./examples/envoy
//
// Open http://127.0.0.1:8080/ to send requests as three users, and to see how many pass. limits.yaml has the limits: one of
// each user, and one of all. They are counted in memory.
//
// If there is no Envoy, a proxy of a few lines stands in for it, and asks by gRPC as Envoy does. With -envoy PATH, that Envoy is
// used. Ctrl-C stops all.
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/headgated"
)

var (
	//go:embed limits.yaml
	document []byte
	//go:embed envoy.yaml
	config string
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "serve the page on this `address`")
	envoy := flag.String("envoy", "envoy", "the `program`; empty: a stand-in")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	if err := run(ctx, *addr, *envoy); err != nil {
		fmt.Fprintln(os.Stderr, "envoy:", err)
		os.Exit(1)
	}
}

// run runs the service, the application, the proxy and the page until ctx is done.
func run(ctx context.Context, addr, envoy string) error {
	service, err := headgated.New(headgated.Config{Document: func(context.Context) ([]byte, error) { return document, nil }, GRPC: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	addrs, err := service.Listen()
	if err != nil {
		service.Close()
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- service.Serve(ctx) }()
	defer func() {
		cancel()
		<-served
	}()
	application, err := serve(ctx, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") }))
	if err != nil {
		return err
	}
	name, start := "Envoy", startEnvoy
	if envoy, err = exec.LookPath(envoy); err != nil {
		name, start = "a stand-in for Envoy", standIn
	}
	front, err := start(ctx, envoy, addrs.GRPC, application)
	if err != nil {
		return err
	}
	page, err := serve(ctx, addr, routes(service, front, name))
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(os.Stdout, "%s listens on http://%s/ and asks headgated. Open the page: http://%s/\n", name, front, page)
	<-ctx.Done()
	return nil
}

// serve serves until ctx is done, and returns the address.
func serve(ctx context.Context, addr string, h http.Handler) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(l) }()
	return l.Addr().String(), nil
}

// startEnvoy starts Envoy, and returns where it listens.
func startEnvoy(ctx context.Context, program, service, application string) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	front := l.Addr().String() // a port that is free: Envoy listens there next
	_ = l.Close()
	dir, err := os.MkdirTemp("", "envoy")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = os.RemoveAll(dir) })
	port := func(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
	text := strings.NewReplacer("FRONT", port(front), "APPLICATION", port(application), "SERVICE", port(service)).Replace(config)
	name := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, program, "-c", name, "--use-dynamic-base-id", "--log-level", "error")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", front)
		if err == nil {
			return front, c.Close()
		}
		select {
		case err := <-ended:
			return "", fmt.Errorf("%s has ended: %w", program, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

//go:embed page.html
var html string

// routes has the page, what it asks for, and what headgated shows of its limits.
func routes(service *headgated.Server, front, name string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, strings.ReplaceAll(html, "PROXY", name))
	})
	ask := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { // the request of a user to the proxy
		r.Out.Method, r.Out.URL = http.MethodGet, &url.URL{Scheme: "http", Host: front, Path: "/"}
		r.Out.Header = http.Header{"X-User": {r.In.FormValue("user")}}
	}}
	mux.Handle("POST /ask", ask)
	mux.Handle("GET /debug/headgate/", service.Admin())
	return mux
}
