package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/headgated"
)

// options are what the command line and the environment say.
type options struct {
	flags *flag.FlagSet
	words []string // that are no flags

	file, directory   string
	grpc, http, admin string
	charge            string
	merge, metadata   bool
	mode, failure     string
	tls               headgated.TLS
	names             string // of clients
	insecure          bool
	redis, prefix     string
	limitsKey         string
	secretFile, from  string
	timeout           time.Duration
	servers           int
	lease, drain      time.Duration
}

func (o *options) define() {
	f := o.flags
	f.StringVar(&o.file, "config", "", "the `file` with limits and routes")
	f.StringVar(&o.directory, "envoy-config", "", "the `directory` with configurations of Envoy's rate limit service")
	f.StringVar(&o.charge, "charge", "all", "how the descriptors of a request of Envoy are charged, in domains that do not say: all or none, or `each` for itself")
	f.BoolVar(&o.merge, "merge-domains", false, "several files may have the same domain")
	f.BoolVar(&o.metadata, "response-metadata", false, "tell Envoy the descriptors of a request, and the metadata of the limits that it has passed")
	f.StringVar(&o.grpc, "grpc", "127.0.0.1:8081", "where Envoy asks: unix:PATH or HOST:PORT; empty: nowhere")
	f.StringVar(&o.http, "http", "127.0.0.1:8080", "where programs and proxies ask: unix:PATH or HOST:PORT; empty: nowhere")
	f.StringVar(&o.admin, "admin", "127.0.0.1:6070", "where operators ask: unix:PATH or HOST:PORT; empty: nowhere")
	f.StringVar(&o.mode, "socket-mode", "0660", "the permissions of unix sockets")
	f.StringVar(&o.tls.Cert, "tls-cert", "", "the `file` of the certificate")
	f.StringVar(&o.tls.Key, "tls-key", "", "the `file` of its key")
	f.StringVar(&o.tls.ClientCA, "tls-client-ca", "", "the `file` of the CA of clients, which then need a certificate")
	f.StringVar(&o.names, "tls-client-san", "", "the `names` in certificates that may come in, with commas")
	f.BoolVar(&o.insecure, "insecure", false, "listen beyond the loopback interface without TLS")
	f.StringVar(&o.redis, "redis", "", "the `URL` of Redis, such as redis://user:password@host:6379/0; empty: the memory of this process")
	f.StringVar(&o.prefix, "redis-prefix", "", "begins the names of all keys in Redis; empty: headgate")
	f.StringVar(&o.limitsKey, "limits-redis", "", "the `key` of the limits in Redis, which headgate push writes; empty: they are in the file")
	f.StringVar(&o.secretFile, "secret-file", "", "the `file` of a secret of 32 bytes or more, under which keys are hidden")
	f.DurationVar(&o.timeout, "timeout", 15*time.Millisecond, "how long Redis may take for a decision")
	f.StringVar(&o.failure, "failure", "local", "who decides without Redis: `local`, open or closed")
	f.IntVar(&o.servers, "servers", 0, "how many servers share the limits without Redis")
	f.DurationVar(&o.lease, "lease", 0, "for how long units of hot keys are leased; 0: they are not")
	f.DurationVar(&o.drain, "drain", 10*time.Second, "how long requests may take that have begun when the server stops")
	f.StringVar(&o.from, "from", "192.0.2.1", "the client's `address`, for explain")
}

// parse reads the command line, and then the environment for flags that are not there. No error has a
// value, which may be a secret.
func parse(args []string, env func(string) (string, bool)) (o *options, help bool, err error) {
	o = &options{flags: flag.NewFlagSet("headgated", flag.ContinueOnError)}
	o.flags.SetOutput(io.Discard)
	o.flags.Usage = func() {}
	o.define()
	if err := o.flags.Parse(args); err != nil {
		return o, errors.Is(err, flag.ErrHelp), o.withoutValue(err)
	}
	o.words = o.flags.Args()
	given := make(map[string]bool)
	o.flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	o.flags.VisitAll(func(f *flag.Flag) {
		name := "HEADGATED_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value, ok := env(name); ok && !given[f.Name] && err == nil {
			if o.flags.Set(f.Name, value) != nil {
				err = fmt.Errorf("%s is no value of -%s", name, f.Name)
			}
		}
	})
	return o, false, err
}

var flagName = regexp.MustCompile(`(?:for flag |for |needs an argument: )-([a-z-]+)`)

// withoutValue returns an error of package flag without what it repeats of the command line.
func (o *options) withoutValue(err error) error {
	if m := flagName.FindStringSubmatch(err.Error()); m != nil && o.flags.Lookup(m[1]) != nil {
		return fmt.Errorf("the value of -%s is not valid", m[1])
	}
	return errors.New("an argument is no flag: see headgated -help")
}

// config returns the configuration that the options are.
func (o *options) config() (headgated.Config, error) {
	c := headgated.Config{
		EnvoyConfig: o.directory, MergeDomains: o.merge, ChargeEach: o.charge == "each", ResponseMetadata: o.metadata,
		GRPC: o.grpc, HTTP: o.http, Admin: o.admin, TLS: o.tls, Insecure: o.insecure, Redis: o.redis, RedisPrefix: o.prefix, LimitsKey: o.limitsKey,
		Timeout: o.timeout, Servers: o.servers, Lease: o.lease, Drain: o.drain,
	}
	if o.charge != "all" && o.charge != "each" {
		return c, errors.New("the value of -charge is not valid: it is all or each")
	}
	mode, err := strconv.ParseUint(o.mode, 8, 9)
	if err != nil || mode == 0 {
		return c, errors.New("the value of -socket-mode is not valid: it is octal, such as 0660")
	}
	c.SocketMode = fs.FileMode(mode)
	failures := map[string]redisstore.Failure{"local": redisstore.FailLocal, "open": redisstore.FailOpen, "closed": redisstore.FailClosed}
	failure, ok := failures[o.failure]
	if !ok {
		return c, errors.New("the value of -failure is not valid: it is local, open or closed")
	}
	c.Failure = failure
	if o.names != "" {
		for name := range strings.SplitSeq(o.names, ",") {
			c.TLS.ClientSAN = append(c.TLS.ClientSAN, strings.TrimSpace(name))
		}
	}
	if o.secretFile != "" {
		text, err := os.ReadFile(o.secretFile)
		if err != nil {
			var path *os.PathError
			if errors.As(err, &path) { // who gives the secret for its file must not see it printed
				err = path.Err
			}
			return c, fmt.Errorf("the file of -secret-file: %w", err)
		}
		if c.Secret = []byte(strings.TrimRight(string(text), "\r\n")); len(c.Secret) == 0 {
			return c, errors.New("the file of -secret-file is empty")
		}
	}
	return c, nil
}
