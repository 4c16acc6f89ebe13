// Headgate checks, compares and publishes documents of package limits, and looks into a store.
//
//	go run github.com/headgate/headgate/cmd/headgate check limits.yaml
//	go run github.com/headgate/headgate/cmd/headgate diff old.yaml new.yaml
//
// Without arguments it lists its commands, and with -help after one that command's flags. See
// docs/headgate.md.
//
// A call of a command goes this way:
//
//  1. run finds the command, which declares its flags and parses them (main.go).
//  2. check and diff read files (documents.go). All others need Redis, and most of them a document (redis.go).
//  3. What is said goes through print, as JSON or for people, with escapes for what would harm a terminal (visible.go).
//  4. The exit code says yes or no, or that there is no answer.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // zones of calendars, on systems that have none

	"github.com/redis/go-redis/v9"
)

// Exit codes.
const (
	exitOK      = 0
	exitNo      = 1 // the answer is no: there are faults, differences, problems or refusals
	exitTrouble = 2 // there is no answer: the command line, a file or a server
)

func main() {
	redis.SetLogger(silent{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	// In a goroutine of its own: a read of standard input cannot be ended, and a signal must end the process all the
	// same.
	code := make(chan int, 1)
	go func() { code <- run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr) }()
	select {
	case c := <-code:
		os.Exit(c)
	case <-ctx.Done():
	}
	// What waits for a server ends with the context, but what reads may wait for ever.
	select {
	case c := <-code:
		os.Exit(c)
	case <-time.After(endTime):
		fmt.Fprintln(os.Stderr, "headgate: interrupted")
		os.Exit(exitTrouble)
	}
}

// endTime is how long a command has to end after a signal.
const endTime = 100 * time.Millisecond

// A command is one of the commands. Its run returns the exit code, and an error if there is no answer.
type command struct {
	name, args, purpose string
	run                 func(ctx context.Context, command *call) (int, error)
}

// commands returns the commands, in the order in which usage lists them.
func commands() []command {
	return []command{
		{"check", "FILE...", "says all that is wrong with documents", check},
		{"diff", "OLD NEW", "says what changes, and which keys start fresh", diff},
		{"push", "FILE -redis URL", "publishes a document for all servers", push},
		{"pull", "-redis URL", "prints the document that was pushed", pull},
		{"peek", "LIMIT KEY -redis URL", "says what a key has left", peek},
		{"reset", "LIMIT KEY -redis URL", "forgets what a key has used", reset},
		{"ping", "-redis URL", "tries what the store needs of Redis, and says what is missing", ping},
		{"version", "", "says which version this is", version},
	}
}

// A call is a call of a command. What it prints goes through its methods, as texts from outside may have control
// characters, and passwords in URLs.
type call struct {
	flags  *flag.FlagSet
	usage  func()
	args   []string // behind the name of the command
	stdin  io.Reader
	stdout *output
	stderr io.Writer
	json   bool
}

// errUsage is the error of a wrong command line, which was told already.
var errUsage = errors.New("usage")

// run runs a command and returns its exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return exitTrouble
	}
	// Who asks for help gets a yes; who has called it wrongly does not, though both get the same list.
	if slices.Contains([]string{"-help", "--help", "-h", "help"}, args[0]) {
		usage(stderr)
		return exitOK
	}
	for _, cmd := range commands() {
		if cmd.name == args[0] {
			call := &call{args: args[1:], stdin: stdin, stdout: &output{writer: stdout}, stderr: stderr}
			return call.run(ctx, cmd)
		}
	}
	// It is not repeated: it may be a password or a key that is in the wrong place.
	fmt.Fprintln(stderr, "headgate: the first argument is no command")
	usage(stderr)
	return exitTrouble
}

// run runs the command of the call, and returns its exit code.
func (c *call) run(ctx context.Context, cmd command) int {
	// The package would print the values of flags, which may be passwords.
	c.flags = flag.NewFlagSet("headgate "+cmd.name, flag.ContinueOnError)
	c.flags.SetOutput(io.Discard)
	c.flags.Usage = func() {}
	c.usage = func() {
		fmt.Fprintf(c.stderr, "headgate %s %s: %s\n", cmd.name, cmd.args, cmd.purpose)
		c.flags.SetOutput(c.stderr)
		c.flags.PrintDefaults()
	}
	c.flags.BoolVar(&c.json, "json", false, "print JSON")
	code, err := cmd.run(ctx, c)
	// A script that reads half of a document must not get a yes.
	if err == nil && c.stdout.err != nil {
		err = fmt.Errorf("standard output: %w", c.stdout.err)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		return exitTrouble
	case err == nil:
		return code
	}
	// An error may join several, a line each. The first line names the command.
	for i, line := range strings.Split(strings.TrimPrefix(err.Error(), "headgate: "), "\n") {
		if i == 0 {
			line = "headgate " + cmd.name + ": " + line
		}
		c.warnf("%s\n", line)
	}
	return exitTrouble
}

// usage lists the commands.
func usage(w io.Writer) {
	fmt.Fprintln(w, "usage: headgate COMMAND ...")
	for _, cmd := range commands() {
		fmt.Fprintf(w, "  %-7s%-31s %s\n", cmd.name, cmd.args, cmd.purpose)
	}
	fmt.Fprintln(w, "A FILE is YAML or JSON; - is standard input. Exit codes: 0 yes, 1 no, 2 trouble.")
}

// parse parses the flags, which may stand before, between and after the other arguments, of which there must be least
// to most. What is behind -- is no flag: a key may begin with a dash.
func (c *call) parse(least, most int) ([]string, error) {
	// Package flag stops at the first argument that is no flag, so it is called again behind that.
	var words []string
	for args := c.args; ; {
		if err := c.flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				c.usage()
				return nil, err
			}
			c.badFlag(err)
			c.usage()
			return nil, errUsage
		}
		rest := c.flags.Args()
		read := len(args) - len(rest)
		if len(rest) == 0 || read > 0 && args[read-1] == "--" {
			words = append(words, rest...)
			break
		}
		words = append(words, rest[0])
		args = rest[1:]
	}
	// How many are needed is told, and which flags there are: both are forgotten more often than mistyped.
	if len(words) < least || len(words) > most {
		needed := strconv.Itoa(least)
		if most > least {
			needed += " to " + strconv.Itoa(most)
		}
		fmt.Fprintf(c.stderr, "headgate: arguments: %d given, %s needed\n", len(words), needed)
		c.usage()
		return nil, errUsage
	}
	return words, nil
}

// badFlag says which argument is wrong. It does not repeat it: what should be the value of a flag,
// or has a dash too many, may be a password or a key.
func (c *call) badFlag(err error) {
	// The text of the error is the only sign of what it is about.
	what := "is no flag"
	c.flags.VisitAll(func(f *flag.Flag) {
		// Package flag says: invalid value "x" for flag -timeout: ...; or: invalid boolean value "x" for -json: ...;
		// or: flag needs an argument: -redis.
		texts := []string{"for flag -" + f.Name + ": ", "for -" + f.Name + ": ", "needs an argument: -" + f.Name}
		for _, says := range texts {
			if strings.Contains(err.Error()+" ", says) {
				what = "is no value of -" + f.Name
			}
		}
	})
	// The package has taken all arguments up to the wrong one, so what is left tells its number.
	c.warnf("headgate: argument %d %s\n", len(c.args)-c.flags.NArg(), what)
}

// print prints a value as JSON, or calls a function that prints it for people. The JSON is made before any of it is
// written: a value that has none leaves no half of one.
func (c *call) print(value any, text func()) error {
	if !c.json {
		text()
		return nil
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // people read it, too, and no browser does
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := io.WriteString(c.stdout, visibleJSON(b.String()))
	return err
}

// printf prints to standard output, and makes what is in the arguments visible.
func (c *call) printf(format string, args ...any) { fprintf(c.stdout, format, args) }

// warnf prints to standard error, and makes what is in the arguments visible.
func (c *call) warnf(format string, args ...any) { fprintf(c.stderr, format, args) }
