// Tokens replays a trace of requests to language models, under a budget of tokens for each user.
// The cost of a request is known only when the answer has ended. It compares two ways to charge it:
// an estimate that is settled, and a check before with a report after.
//
//	go run ./benchmarks/tokens -trace AzureLLMInferenceTrace_conv.csv
//
// It prints a table with the tokens used above the limit, the refused requests that would have
// fitted, and the calls of Redis. It starts a redis-server, and tells it the time of a bubble of
// testing/synctest. So the figures do not depend on the machine. The trace is a file of the
// repository Azure/AzurePublicDataset, or one with the same columns.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	trace := flag.String("trace", "", "the `file` to replay: CSV with TIMESTAMP, ContextTokens and GeneratedTokens")
	speed := flag.Float64("speed", 10, "how many `times` as fast requests come: 10 makes six minutes of an hour")
	only := flag.String("only", "", "measure the lines with this `text` in their first three columns")
	flag.Parse()
	if *trace == "" || flag.NArg() > 0 || !(*speed >= 1 && *speed <= 10_000) {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	testing.Init()                // after Parse: its flags are not of this program
	study := func(t *testing.T) { // only a test can have a bubble
		if err := measure(ctx, t, *trace, *speed, *only); err != nil {
			fmt.Fprintln(os.Stderr, "tokens:", err)
			os.Exit(1)
		}
		os.Exit(0) // without the words of a test
	}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "tokens", F: study}}, nil, nil)
}

// measure prints a table of all ways, over all stores and under all policies.
func measure(ctx context.Context, t *testing.T, name string, speed float64, only string) (err error) {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	trace, err := parse(name, f)
	if err != nil {
		return err
	}
	url, stop, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	s := newStudy(trace, speed)
	fmt.Println(s.describe(filepath.Base(name)))
	fmt.Println(header)
	for _, r := range s.runs(url) {
		if !strings.Contains(r.name(), only) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		var sum tally
		synctest.Test(t, func(*testing.T) { sum, err = s.run(ctx, r) })
		if err != nil {
			return fmt.Errorf("%s: %w", r.name(), err)
		}
		fmt.Println(s.line(r, &sum))
	}
	return nil
}

// startRedis starts redis-server at a socket of its own, and returns its URL. It keeps nothing on disk.
func startRedis(ctx context.Context) (url string, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "headgate-tokens-")
	if err != nil {
		return "", nil, err
	}
	addr := filepath.Join(dir, "redis")
	cmd := exec.CommandContext(ctx, "redis-server", "--port", "0", "--unixsocket", addr, "--dir", dir, "--save", "")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop = func() error {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
		return os.RemoveAll(dir)
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	for range 200 {
		if err = client.Ping(ctx).Err(); err == nil {
			return "unix://" + addr, stop, nil
		}
		<-time.After(25 * time.Millisecond)
	}
	return "", nil, errors.Join(fmt.Errorf("redis-server does not answer: %w", err), stop())
}
