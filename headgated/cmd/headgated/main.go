// Headgated applies the limits of a document for programs in any language, and for proxies.
//
//	headgated -config example.yaml
//	headgated check example.yaml
//	headgated explain example.yaml POST https://api.example.com/v1/acme/chat "Authorization=Bearer x"
//
// With -help it lists its flags, each of which has an environment variable too: HEADGATED_CONFIG for
// -config. See package headgated.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	_ "time/tzdata" // zones of calendars, on systems that have none

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/headgated"
	limitsdoc "github.com/headgate/headgate/internal/document"
	oldlimits "github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/limits"
)

// Exit codes.
const (
	exitOK      = 0
	exitNo      = 1 // the answer is no: there are faults, or no route matches
	exitTrouble = 2 // there is no answer: the command line, a file or an address
)

// garbage is how much there may be, in percent of the heap that is in use. That is small, so collecting it at the
// usual 100 would take a sixth of the service's time.
const garbage = 400

func main() {
	redis.SetLogger(silent{})
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr))
}

// silent keeps the client of Redis from telling errors, which are told once.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// A call is a call of the command.
type call struct {
	*options

	stdout, stderr io.Writer
}

// run runs the command and returns its exit code.
func run(ctx context.Context, args []string, env func(string) (string, bool), stdout, stderr io.Writer) int {
	name := ""
	if len(args) > 0 && (args[0] == "check" || args[0] == "explain") {
		name, args = args[0], args[1:]
	}
	o, help, err := parse(args, env)
	c := &call{o, stdout, stderr}
	if help {
		c.usage()
		return exitOK
	}
	code := exitTrouble
	if err == nil {
		switch words := o.words; {
		case name == "check" && len(words) == 1:
			code, err = c.check(words[0])
		case name == "explain" && len(words) >= 3 && isEntry(words[2]):
			code, err = c.explainDescriptor(words[0], words[1], words[2:])
		case name == "explain" && len(words) >= 3:
			code, err = c.explain(words[0], words[1], words[2], words[3:])
		case name == "" && len(words) == 0:
			code, err = c.serve(ctx)
		default:
			err = errors.New("there are too few or too many arguments: see headgated -help")
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "headgated: %s\n", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "headgated: "), "headgate: "))
	}
	return code
}

func (c *call) usage() {
	fmt.Fprint(c.stderr, `usage:
  headgated -config FILE [flags]
  headgated check FILE                                   says all that is wrong with a document
  headgated explain FILE METHOD URL [header=value ...]   says what a document does with a request
  headgated explain FILE DOMAIN key=value ...            says which limit a descriptor of Envoy meets
A FILE is YAML or JSON. Exit codes: 0 yes, 1 no, 2 trouble. Each flag has an environment variable, such as HEADGATED_CONFIG.
`)
	c.flags.SetOutput(c.stderr)
	c.flags.PrintDefaults()
}

// serve serves until the context ends.
func (c *call) serve(ctx context.Context) (int, error) {
	config, err := c.config()
	if err != nil {
		return exitTrouble, err
	}
	if c.file == "" && c.directory == "" {
		return exitTrouble, errors.New("name a document with -config, or a directory with -envoy-config")
	}
	if c.file != "" {
		config.Document = limits.File(c.file)
	}
	config.Logger = slog.New(slog.NewTextHandler(c.stderr, nil))
	s, err := headgated.New(config)
	if err != nil {
		return c.faults(c.file, err)
	}
	addrs, err := s.Listen()
	if err != nil {
		s.Close()
		return exitTrouble, err
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	serving, served := context.WithCancel(ctx)
	defer served()
	go func() {
		for {
			select {
			case <-hup:
				_ = s.Reload(serving) // it is in the log
			case <-serving.Done():
				return
			}
		}
	}()
	fmt.Fprintln(c.stdout, "ready", addrs)
	if err := s.Serve(ctx); err != nil {
		return exitTrouble, err
	}
	return exitOK, nil
}

// faults prints the faults of a document as compilers print theirs, or returns another error.
func (c *call) faults(name string, err error) (int, error) {
	var file *headgated.FileError
	if errors.As(err, &file) {
		fmt.Fprintln(c.stderr, err)
		return exitNo, nil
	}
	var faults oldlimits.Faults
	if !errors.As(err, &faults) {
		return exitTrouble, err
	}
	for _, f := range faults {
		fmt.Fprintln(c.stderr, printed(name, f))
	}
	return exitNo, nil
}

// printed returns a fault as compilers print theirs.
func printed(name string, f *oldlimits.Fault) string {
	if f.Line > 0 {
		name = fmt.Sprintf("%s:%d:%d", name, f.Line, f.Column)
	}
	plain := *f
	plain.Line = 0
	return name + ": " + plain.Error()
}

// read reads a document.
func read(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limitsdoc.MaxBytes+1))
}

// check says what is wrong with a document.
func (c *call) check(name string) (int, error) {
	config, err := c.config()
	if err != nil {
		return exitTrouble, err
	}
	text, err := read(name)
	if err != nil {
		return exitTrouble, err
	}
	notes, err := headgated.Check(text, config)
	if err != nil {
		return c.faults(name, err)
	}
	for _, f := range notes {
		fmt.Fprintf(c.stderr, "%s (a note)\n", printed(name, f))
	}
	fmt.Fprintf(c.stdout, "%s: ok\n", name)
	return exitOK, nil
}

// explain says what a document does with a request.
func (c *call) explain(name, method, url string, fields []string) (int, error) {
	config, err := c.config()
	if err != nil {
		return exitTrouble, err
	}
	text, err := read(name)
	if err != nil {
		return exitTrouble, err
	}
	r, err := http.NewRequestWithContext(context.Background(), method, url, nil)
	if err != nil {
		return exitTrouble, errors.New("the arguments after FILE are METHOD URL [header=value ...], such as POST https://api.example.com/v1/acme/chat X-Plan=gold")
	}
	r.RemoteAddr = net.JoinHostPort(c.from, "1")
	for _, field := range fields {
		key, value, ok := strings.Cut(field, "=")
		if !ok {
			return exitTrouble, errors.New("a header has the form header=value")
		}
		r.Header.Add(key, value)
	}
	e, err := headgated.Explain(text, r, config)
	if err != nil {
		return c.faults(name, err)
	}
	fmt.Fprint(c.stdout, e)
	if len(e.Routes) == 0 || e.Refused() {
		return exitNo, nil
	}
	return exitOK, nil
}

// isEntry reports whether an argument is key=value, and no URL.
func isEntry(text string) bool {
	key, _, ok := strings.Cut(text, "=")
	return ok && !strings.ContainsAny(key, "/?")
}

// explainDescriptor says which limit a descriptor meets.
func (c *call) explainDescriptor(name, domain string, entries []string) (int, error) {
	config, err := c.config()
	if err != nil {
		return exitTrouble, err
	}
	text, err := read(name)
	if err != nil {
		return exitTrouble, err
	}
	for _, e := range entries {
		if !isEntry(e) {
			return exitTrouble, errors.New("the arguments after DOMAIN have the form key=value")
		}
	}
	explained, matched, err := headgated.ExplainDescriptor(text, domain, entries, config)
	if err != nil {
		return c.faults(name, err)
	}
	fmt.Fprint(c.stdout, explained)
	if !matched {
		return exitNo, nil
	}
	return exitOK, nil
}
