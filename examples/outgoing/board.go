package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/headgate/headgate/examples/internal/pages"
)

//go:embed page.html
var pageHTML string

// A board shows the peer and the processes.
type board struct {
	peer *peer

	mu        sync.Mutex
	processes [processes]report // what each said last
	second    int64             // requests that the peer admitted in the last second
}

// A view is what the page shows.
type view struct {
	Limit     int64             `json:"limit"`
	OwnLimit  int64             `json:"ownLimit"`
	Admitted  int64             `json:"admitted"`
	Second    int64             `json:"second"`
	Refused   int64             `json:"refused"`
	Processes [processes]report `json:"processes"`
}

func (b *board) view() view {
	b.mu.Lock()
	defer b.mu.Unlock()
	return view{
		Limit: b.peer.limiter().Policies()[0].Limit(), OwnLimit: ownLimit,
		Admitted: b.peer.admitted.Load(), Second: b.second, Refused: b.peer.refused.Load(),
		Processes: b.processes,
	}
}

func (v view) String() string {
	var sent []int64
	for _, p := range v.Processes {
		sent = append(sent, p.Sent)
	}
	return fmt.Sprintf("the server admits %d a second: %2d in the last, %d refused so far; the processes sent %v", v.Limit, v.Second, v.Refused, sent)
}

// run starts the processes, and prints what they do, until ctx is done or one of them ends.
func (b *board) run(ctx context.Context, url, redisURL string) error {
	ended := make(chan error, processes)
	var running []*process
	defer func() {
		for _, p := range running {
			p.stop()
		}
	}()
	for i := range processes {
		p, err := start(ctx, url, redisURL)
		if err != nil {
			return err
		}
		running = append(running, p)
		go func() {
			ended <- p.read(func(r report) {
				b.mu.Lock()
				b.processes[i] = r
				b.mu.Unlock()
			})
		}()
	}
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for before := int64(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return errors.Join(errors.New("a process ended by itself"), err)
		case <-ticks.C:
		}
		now := b.peer.admitted.Load()
		b.mu.Lock()
		b.second, before = now-before, now
		b.mu.Unlock()
		fmt.Println(b.view())
	}
}

// routes returns the handler of the page, of the numbers that it shows, and of its button.
func (b *board) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { pages.Write(w, pageHTML) })
	mux.HandleFunc("GET /api/now", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(b.view())
	})
	mux.HandleFunc("POST /api/limit", func(w http.ResponseWriter, r *http.Request) {
		low := r.URL.Query().Get("low")
		if low != "true" && low != "false" {
			http.Error(w, "low must be true or false", http.StatusBadRequest)
			return
		}
		b.peer.isLow.Store(low == "true")
		w.WriteHeader(http.StatusNoContent)
	})
	return http.NewCrossOriginProtection().Handler(mux)
}

// workerVariable is set in the environment of processes, so that a test binary can be one.
const workerVariable = "HEADGATE_OUTGOING_WORKER"

// A process is this program, run with -worker.
type process struct {
	command *exec.Cmd
	stdin   io.Closer // it ends when that is closed
	stdout  io.Reader
}

func start(ctx context.Context, url, redisURL string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{command: exec.CommandContext(context.WithoutCancel(ctx), self, "-worker", url, "-redis", redisURL)}
	p.command.Env = append(os.Environ(), workerVariable+"=1")
	p.command.Stderr = os.Stderr
	if p.stdin, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	if p.stdout, err = p.command.StdoutPipe(); err != nil {
		return nil, err
	}
	return p, p.command.Start()
}

// read passes on what the process reports, until it ends.
func (p *process) read(tell func(report)) error {
	for lines := bufio.NewScanner(p.stdout); lines.Scan(); {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return err
		}
		tell(r)
	}
	return nil
}

// stop ends the process, and waits until it has ended.
func (p *process) stop() {
	_ = p.stdin.Close()
	_ = p.command.Wait()
}
