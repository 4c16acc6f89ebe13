package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/examples/internal/pages"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

const (
	maxPrompt     = 1 << 10 // bytes
	defaultAnswer = 200     // tokens
	maxAnswer     = 600     // with the longest prompt, no more than the limit
	longAnswer    = 5000    // tokens of everything that the model knows
)

// estimate returns what a request reserves: the most that it can cost. It does not read the
// body, and uses only numbers that the server enforces.
func estimate(r *http.Request) int64 {
	size := r.ContentLength
	if size < 0 || size > maxPrompt {
		size = maxPrompt // the handler reads no more
	}
	return promptTokens(size) + answerTokens(r)
}

// promptTokens counts three bytes as a token, rounded up.
func promptTokens(size int64) int64 { return (size + 2) / 3 }

// answerTokens returns the most tokens that the answer may have.
func answerTokens(r *http.Request) int64 {
	n, err := strconv.ParseInt(r.URL.Query().Get("max_tokens"), 10, 64)
	if err != nil || n < 1 {
		return defaultAnswer
	}
	return min(n, maxAnswer)
}

// A chat streams the model's answers, and says what they cost.
type chat struct {
	limiter *core.Limiter             // which charged the request
	most    func(*http.Request) int64 // tokens that an answer may have; nil: any number
	pace    time.Duration             // between two tokens
}

func (c chat) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	used := int64(0)
	defer func() { nethttp.SetCost(r.Context(), c.limiter, used) }()

	prompt, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPrompt))
	if err != nil {
		http.Error(w, "400 the prompt cannot be read or exceeds 1 KiB", http.StatusBadRequest)
		return
	}
	used += promptTokens(int64(len(prompt)))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	stream := http.NewResponseController(w)
	tokens := int64(0)
	for word := range model(r.Context(), string(prompt), c.pace) {
		if c.most != nil && tokens == c.most(r) {
			break
		}
		tokens++
		used++
		io.WriteString(w, word+" ")
		_ = stream.Flush() // a client that has gone ends the context
	}
	fmt.Fprintf(w, "\n\n%d tokens used\n", used)
}

// model yields an answer word by word, each of which counts as a token, and stops when the
// client disconnects. A prompt with "everything" gets a long answer.
func model(ctx context.Context, prompt string, pace time.Duration) func(func(string) bool) {
	words := strings.Fields("You said: " + prompt + " . A rate limit protects a service from too many requests: " +
		"each client gets its fair share, and a refusal says when to try again.")
	length := len(words)
	if strings.Contains(prompt, "everything") {
		length = longAnswer
	}
	return func(yield func(string) bool) {
		for i := range length {
			if i > 0 && pace > 0 {
				select {
				case <-ctx.Done():
				case <-time.After(pace):
				}
			}
			if ctx.Err() != nil || !yield(words[i%len(words)]) {
				return
			}
		}
	}
}

// now shows what an address has left, and changes nothing.
type now struct{ estimated, reported *core.Limiter }

// A view is what the page shows.
type view struct {
	Estimated state `json:"estimated"`
	Reported  state `json:"reported"`
}

// A state is what is left of a limit.
type state struct {
	Left int64 `json:"left"` // tokens
	Wait int64 `json:"wait"` // seconds until one is left, rounded up; 0 if there is
}

func (n now) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	look := func(l *core.Limiter) (state, error) {
		key, err := keyfuncs.RemoteAddr()(r)
		if err != nil {
			return state{}, err
		}
		d, err := l.Peek(r.Context(), key)
		return state{d.Remaining, int64((d.RetryAfter + time.Second - 1) / time.Second)}, err
	}
	estimated, err := look(n.estimated)
	reported, failed := look(n.reported)
	if err != nil || failed != nil {
		http.Error(w, "503 the limits are not available", http.StatusServiceUnavailable)
		return
	}
	text, err := json.Marshal(view{estimated, reported})
	if err != nil {
		http.Error(w, "500 the answer cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(append(text, '\n'))
}

//go:embed page.html
var pageHTML string

func page(w http.ResponseWriter, _ *http.Request) { pages.Write(w, pageHTML) }
