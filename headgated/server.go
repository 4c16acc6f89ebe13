package headgated

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/docstore"
)

// A Server is the service. Make one with [New]. It is safe for concurrent use.
type Server struct {
	config  Config
	log     *slog.Logger
	stats   *stats.Stats
	metrics *metrics
	store   *backend.Store
	close   func(context.Context) error // of the store

	rls          rlsDefaults
	overrides    overrides
	current      atomic.Pointer[configuration]
	certificates atomic.Pointer[certificates]
	draining     atomic.Bool
	forged       atomic.Bool // a peer that is not trusted has sent X-Forwarded-*, which was logged

	loading sync.Mutex
	shared  *docstore.Store // of the limits; nil: they are in the document
	me      docstore.Server // what others learn of this server
	read    *texts          // that were read last; nil: none

	mu     sync.Mutex
	faults [reloaded]error // why what was read last does not apply

	doors []door // once Listen was called
}

// Format implements [fmt.Formatter]: it prints no content, because that has secrets.
func (*Server) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "headgated.Server") }

// New returns a server with the limits of its document. It does not listen yet. The error is of the
// configuration, or has all mistakes in the document or a file. A Redis that is away is none.
func New(c Config) (*Server, error) {
	c, err := withDefaults(c)
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, log: c.Logger, rls: c.rls(), stats: stats.New(stats.Config{Logger: c.Logger})}
	opened, err := c.openStore(s.stats)
	if err != nil {
		return nil, fmt.Errorf("headgated: %w", err)
	}
	s.store, s.close = opened.store, opened.close
	if c.LimitsKey != "" {
		s.shared = &docstore.Store{Client: opened.client, Key: c.LimitsKey}
		s.me.ID = rand.Text()[:12]
	}
	s.config.Secret, s.config.Redis = nil, "" // they are where printing does not show them
	s.metrics = newMetrics(s.stats)
	if err := s.begin(); err != nil {
		s.Close()
		return nil, err
	}
	if c.Redis == "" {
		s.log.Info("headgated: the counts are in the memory of this process: name a Redis for several")
	}
	return s, nil
}

// Close releases the resources of the server. One that serves is ended by the context of
// [Server.Serve] instead.
func (s *Server) Close() {
	for _, d := range s.doors {
		_ = d.listener.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if s.shared != nil {
		_ = s.shared.Leave(ctx, s.me.ID)
	}
	_ = s.close(ctx)
}

// closeTimeout bounds how long a server that ends waits for Redis.
const closeTimeout = time.Second

// Addrs are where the doors of a server listen. A door that is not there is empty.
type Addrs struct{ GRPC, HTTP, Admin string }

// String returns the addresses as the command prints them.
func (a Addrs) String() string {
	or := func(addr string) string {
		if addr == "" {
			return "-"
		}
		return addr
	}
	return fmt.Sprintf("grpc=%s http=%s admin=%s", or(a.GRPC), or(a.HTTP), or(a.Admin))
}

// A door is where requests come in.
type door struct {
	listener net.Listener
	serve    func(net.Listener) error
	shutdown func(context.Context) error // takes no more, and waits for the requests that have begun
	abort    func() error                // cuts them off
	last     bool                        // it ends when the others have
}

// end ends a door before the context ends.
func (d *door) end(ctx context.Context) error {
	if err := d.shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("headgated: some requests were cut off: %w", err), d.abort())
	}
	return nil
}

// Listen opens the doors, and is called once, before [Server.Serve]. From then on the kernel accepts
// connections.
func (s *Server) Listen() (Addrs, error) {
	var all Addrs
	for _, d := range []struct {
		name, addr string
		open       func(net.Listener, *tls.Config) door
		into       *string
		tls        func(*certificates) *tls.Config
	}{
		{"grpc", s.config.GRPC, s.grpcDoor, &all.GRPC, func(c *certificates) *tls.Config { return c.door }},
		{"http", s.config.HTTP, s.httpDoor(s.HTTP()), &all.HTTP, func(c *certificates) *tls.Config { return c.door }},
		{"admin", s.config.Admin, s.httpDoor(s.Admin()), &all.Admin, func(c *certificates) *tls.Config { return c.admin }},
	} {
		if d.addr == "" {
			continue
		}
		listener, text, err := s.config.listen(d.addr)
		if err != nil {
			for _, open := range s.doors {
				_ = open.listener.Close()
			}
			s.doors = nil
			return Addrs{}, fmt.Errorf("headgated: %s: %w", d.name, err)
		}
		*d.into = text
		var secure *tls.Config
		if _, unix := cutUnix(d.addr); s.config.TLS.Cert != "" && !unix {
			secure = &tls.Config{
				MinVersion:         tls.VersionTLS12,
				NextProtos:         []string{"h2", "http/1.1"},
				GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return d.tls(s.certificates.Load()), nil },
			}
		}
		opened := d.open(listener, secure)
		opened.last = d.into == &all.Admin
		s.doors = append(s.doors, opened)
	}
	return all, nil
}

// httpDoor returns a door of package http.
func (s *Server) httpDoor(h http.Handler) func(net.Listener, *tls.Config) door {
	return func(l net.Listener, secure *tls.Config) door {
		server := newHTTPServer(h, s.log)
		server.TLSConfig = secure
		serve := server.Serve
		if secure != nil {
			serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
		}
		return door{listener: l, serve: serve, shutdown: server.Shutdown, abort: server.Close}
	}
}

// The bounds of a connection. The idle time is longer than proxies keep connections open.
const (
	headTimeout = 5 * time.Second
	bodyTimeout = 10 * time.Second
	idleTimeout = 2 * time.Minute
	maxHead     = 64 << 10
)

func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headTimeout, ReadTimeout: bodyTimeout, WriteTimeout: bodyTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHead, ErrorLog: slog.NewLogLogger(quiet{log.Handler()}, slog.LevelDebug),
	}
}

// A quiet handler drops what package http tells of connections: clients can cause it as often as they
// like. What it tells of panics stays.
type quiet struct{ slog.Handler }

// Handle implements [slog.Handler].
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if !strings.HasPrefix(r.Message, "http: panic") {
		return nil
	}
	r.Level = slog.LevelError
	return q.Handler.Handle(ctx, r)
}

// Enabled implements [slog.Handler].
func (q quiet) Enabled(context.Context, slog.Level) bool { return true }

// Serve answers requests until the context ends, and reads the document and certificates again when they
// have changed. Then it takes no more connections, waits for the requests that have begun, for
// [Config].Drain at most, and closes the server. The admin door is the last to close.
func (s *Server) Serve(ctx context.Context) error {
	defer s.Close()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watch(watching)
	}()
	failed := make(chan error, len(s.doors))
	for _, d := range s.doors {
		go func() {
			failed <- d.serve(d.listener)
		}()
	}
	select {
	case err := <-failed:
		return fmt.Errorf("headgated: %w", err)
	case <-ctx.Done():
		return s.drain(context.WithoutCancel(ctx), watched)
	}
}

// watch reads the document and certificates again until the context ends.
func (s *Server) watch(ctx context.Context) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = s.reload(ctx, false) // it was told
		case <-ctx.Done():
			return
		}
	}
}

// drain ends the doors, all at once, and the admin door after them. It waits for a reload too, but not for one that hangs.
func (s *Server) drain(ctx context.Context, watched <-chan struct{}) error {
	s.draining.Store(true)
	ctx, cancel := context.WithTimeout(ctx, s.config.Drain)
	defer cancel()
	errs := make([]error, len(s.doors))
	for _, last := range []bool{false, true} {
		var ending sync.WaitGroup
		for i, d := range s.doors {
			if d.last == last {
				ending.Go(func() { errs[i] = d.end(ctx) })
			}
		}
		ending.Wait()
	}
	select {
	case <-watched:
	case <-ctx.Done():
	}
	return errors.Join(errs...)
}
