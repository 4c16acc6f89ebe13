package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/examples/internal/pages"
)

//go:embed page.html
var pageHTML string

// A board shows the sockets of each user on each server, on a page and in the terminal.
type board struct {
	fleet *fleet
	mu    sync.Mutex
	news  []string
	start time.Time
}

func newBoard(f *fleet) *board { return &board{fleet: f, start: time.Now()} }

// say adds a line to the news.
func (b *board) say(format string, args ...any) {
	line := fmt.Sprintf("%5.1f s  ", time.Since(b.start).Seconds()) + fmt.Sprintf(format, args...)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.news = append(b.news, line)
}

// A picture is the state that the board shows.
type picture struct {
	Limit   int64           `json:"limit"`
	Servers []serverPicture `json:"servers"`
	Users   []userPicture   `json:"users"`
	News    []string        `json:"news"`
}

type serverPicture struct {
	Name  string `json:"name"`
	State string `json:"state"`
}

type userPicture struct {
	Name    string  `json:"name"`
	Open    []int64 `json:"open"`    // on each server
	Counted int64   `json:"counted"` // in Redis
	Refused int     `json:"refused"`
}

func (b *board) picture() picture {
	p := picture{Limit: b.fleet.limit}
	for _, s := range b.fleet.servers {
		p.Servers = append(p.Servers, serverPicture{s.name, *s.state.Load()})
	}
	b.fleet.each(func(u *user) {
		x := userPicture{Name: u.name, Counted: u.counted, Refused: u.refused}
		for _, s := range b.fleet.servers {
			x.Open = append(x.Open, u.open[s])
		}
		p.Users = append(p.Users, x)
	})
	b.mu.Lock()
	p.News = append(p.News, b.news...)
	b.mu.Unlock()
	return p
}

const refresh = 200 * time.Millisecond

// routes returns the handler of the page, and of the pictures that it shows.
func (b *board) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { pages.Write(w, pageHTML) })
	mux.HandleFunc("GET /pictures", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-store")
		ticks := time.NewTicker(refresh)
		defer ticks.Stop()
		for {
			data, err := json.Marshal(b.picture())
			if err != nil {
				return
			}
			if _, err := fmt.Fprintf(w, "data: %s\n\n", data); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-ticks.C:
			case <-r.Context().Done():
				return
			}
		}
	})
	return mux
}

// print shows pictures in a terminal, or prints only the news to another output, until ctx
// is done. Then it prints once more and closes the channel.
func (b *board) print(ctx context.Context, out *os.File) <-chan struct{} {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticks := time.NewTicker(refresh)
		defer ticks.Stop()
		lines := 0
		for ending := false; ; {
			_, _ = b.fleet.counted(ctx)
			lines = b.draw(out, terminal, lines)
			if ending {
				return
			}
			select {
			case <-ticks.C:
			case <-ctx.Done():
				ending = true
			}
		}
	}()
	return done
}

// draw overwrites the previous picture, which had before lines, or without a terminal prints
// the news after the first before lines. It returns the number of lines for the next call.
func (b *board) draw(w io.Writer, terminal bool, before int) (lines int) {
	p := b.picture()
	if !terminal {
		for _, line := range p.News[before:] {
			fmt.Fprintln(w, line)
		}
		return len(p.News)
	}
	var text strings.Builder
	if before > 0 {
		fmt.Fprintf(&text, "\x1b[%dA\x1b[J", before) // move up, and clear below
	}
	fmt.Fprintf(&text, "%-6s", "user")
	for _, s := range p.Servers {
		fmt.Fprintf(&text, "%-14s", s.Name+" "+s.State)
	}
	fmt.Fprintf(&text, "%-10s%s\n", "counted", "refused")
	for _, u := range p.Users {
		fmt.Fprintf(&text, "%-6s", u.Name)
		for _, n := range u.Open {
			fmt.Fprintf(&text, "%-14s", strings.Repeat("●", int(min(n, 12))))
		}
		fmt.Fprintf(&text, "%-10s%d\n", fmt.Sprintf("%d of %d", u.Counted, p.Limit), u.Refused)
	}
	fmt.Fprintf(&text, "\n%s\n", strings.Join(p.News, "\n"))
	fmt.Fprint(w, text.String())
	return strings.Count(text.String(), "\n")
}
