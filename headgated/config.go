package headgated

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/limits"
)

// Config configures a [Server]. Only Document, or EnvoyConfig, is required. Literals must name the fields.
type Config struct {
	_ struct{}

	// Document has the limits, the routes and the descriptors: [limits.File], say. It is asked every second, and its text
	// is YAML or JSON, as the package documentation describes.
	Document limits.Source

	// EnvoyConfig, if not empty, is a directory with configurations of Envoy's rate limit service,
	// in the format of its reference. All files in it and in the directories below count but hidden ones,
	// each of a domain. They are added to the domains in the document, which may be nil then. MergeDomains permits a domain in
	// several files. ChargeEach is for domains that do not say. It charges each descriptor of a
	// request alone, as the reference does.
	EnvoyConfig  string
	MergeDomains bool
	ChargeEach   bool

	// ResponseMetadata adds to the dynamic_metadata of an answer, for Envoy's filters and logs. It
	// adds the domain, the descriptors, and the metadata of the limits that the request has passed.
	// They have the values of descriptors.
	ResponseMetadata bool

	// GRPC, HTTP and Admin are where the doors listen: HOST:PORT, or unix:PATH. Port 0 is a free one. An empty
	// address is no door; the handlers of [Server.HTTP] and [Server.Admin] are there all the same.
	GRPC, HTTP, Admin string

	// SocketMode are the permissions of unix sockets. 0 means 0660.
	SocketMode fs.FileMode

	// TLS is for all doors with a HOST:PORT. Its zero value is none.
	TLS TLS

	// Insecure permits a HOST:PORT without TLS that is not of the loopback interface.
	Insecure bool

	// Redis is the URL of the Redis that has the counts, as redisstore.Open takes it. If it is empty,
	// they are in the memory of this process. RedisPrefix begins the names of its keys; empty means
	// "headgate".
	Redis       string `json:"-"`
	RedisPrefix string

	// Secret, of at least 32 bytes, hides keys from Redis. All
	// servers have the same. Empty means none.
	Secret []byte `json:"-"`

	// LimitsKey, if not empty, is the key of the document of limits in Redis that the command headgate push
	// writes: see package redisdoc. Then Document has no limits. Without Redis, the server does not start.
	LimitsKey string

	// Timeout bounds a decision by Redis, also one of several calls. 0 means 15 ms. Failure says who decides when it has
	// passed, or Redis is away. Servers is how many servers share the limits then: see
	// redisstore.Config.
	Timeout time.Duration
	Failure redisstore.Failure
	Servers int

	// Lease, if not 0, is for how long units of hot keys are leased: see redisstore.Config.
	Lease time.Duration

	// Drain is how long requests that have begun may take when the server stops. 0 means 10 s.
	Drain time.Duration

	// Logger gets records for the operator, without keys and secrets. Nil means slog.Default.
	Logger *slog.Logger
}

// TLS are the files of certificates, in PEM. They are read again with the document.
type TLS struct {
	Cert, Key string // of the server
	ClientCA  string // which the certificates of clients are of; empty: clients need none

	// ClientSAN are names of clients, as in their certificates: DNS names, URIs, addresses and e-mail
	// addresses. Of DNS names, the case does not matter. A client needs one of them. None means that
	// all of ClientCA may come in. The admin door asks for no certificate.
	ClientSAN []string
}

const (
	defaultTimeout = 15 * time.Millisecond
	defaultDrain   = 10 * time.Second
	defaultMode    = 0o660
	every          = time.Second // the document is asked
)

// Format implements [fmt.Formatter]: it prints the configuration without its secrets.
func (c Config) Format(s fmt.State, verb rune) {
	type plain Config
	c.Secret = nil
	if c.Redis != "" {
		c.Redis = hidden.Mark
	}
	hidden.Print(s, verb, plain(c))
}

// withDefaults returns the configuration with its defaults, or all that is wrong with it.
func withDefaults(c Config) (Config, error) {
	if c.SocketMode == 0 {
		c.SocketMode = defaultMode
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Drain == 0 {
		c.Drain = defaultDrain
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("headgated: "+format, args...))
	}
	if c.Document == nil && c.EnvoyConfig == "" {
		fault("there is no document: set Config.Document, or -config")
	}
	if c.Document == nil {
		c.Document = func(context.Context) ([]byte, error) { return []byte(`{"rls": []}`), nil }
	}
	if c.LimitsKey != "" && c.Redis == "" {
		fault("limits in Redis need a Redis")
	}
	if n := len(c.Secret); n > 0 && n < rediskey.MinSecret {
		fault("a secret of %d bytes can be guessed: use %d random bytes or more", n, rediskey.MinSecret)
	}
	if c.Drain < 0 {
		fault("a drain of %v is negative", c.Drain)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		fault("a certificate needs its key, and a key its certificate")
	}
	if c.TLS.ClientCA != "" && c.TLS.Cert == "" {
		fault("a CA of clients needs a certificate of the server")
	}
	if len(c.TLS.ClientSAN) > 0 && c.TLS.ClientCA == "" {
		fault("names of clients need the CA that vouches for them")
	}
	if slices.Contains(c.TLS.ClientSAN, "") {
		fault("a name of clients is empty")
	}
	for name, addr := range map[string]string{"grpc": c.GRPC, "http": c.HTTP, "admin": c.Admin} {
		if err := c.permits(addr); err != nil {
			fault("%s: %w", name, err)
		}
	}
	return c, errors.Join(faults...)
}
