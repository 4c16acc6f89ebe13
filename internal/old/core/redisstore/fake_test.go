package redisstore

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/headgate/headgate/internal/old/core/step"
)

// A fake is a server inside a bubble of package synctest, where no time passes
// while it works. It admits everything and keeps nothing, but counts.
type fake struct {
	mu      sync.Mutex
	how     how
	text    string        // of the error, when it fails; empty: there is no memory
	changed chan struct{} // closed when how does
	calls   int           // of scripts
	asked   int           // questions in them
	let     int           // calls to be answered in silence nevertheless
	resets  int
	probes  []time.Time
	conns   []net.Conn

	// takes is how long a script works on a first key, nil for no time, and thread is
	// taken meanwhile: as Redis, the fake does one thing at a time.
	takes  func(name string) time.Duration
	thread chan struct{}
}

// how the fake treats what it is sent.
type how int

const (
	answer how = iota
	silence
	hangUp // after it has run a script
	fail   // with an error
	refuse // connections too
)

func newFake() *fake {
	return &fake{changed: make(chan struct{}), thread: make(chan struct{}, 1)}
}

// work sets how long a script works on a first key.
func (f *fake) work(takes func(name string) time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.takes = takes
}

func (f *fake) be(h how) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.how = h
	close(f.changed)
	f.changed = make(chan struct{})
}

// answerCalls answers some of the calls that wait, and remains silent.
func (f *fake) answerCalls(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.let = n
	close(f.changed)
	f.changed = make(chan struct{})
}

// close ends all connections, also those that the client has forgotten to close, as
// old ones do when the first command on them fails.
func (f *fake) close() {
	f.be(refuse)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.Close()
	}
}

func (f *fake) counts() (calls, asked int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls, f.asked
}

func (f *fake) open(t testing.TB, c Config, change ...func(*redis.Options)) *Store {
	t.Helper()
	o := &redis.Options{
		Addr:                  "127.0.0.1:6379", // looks no name up
		Dialer:                f.dial,
		ContextTimeoutEnabled: true,
		PoolSize:              1000, // go-redis cannot wait for a connection in a bubble
		MaxRetries:            -1,   // as Open makes it
		DialerRetries:         1,
		// Whoever listens for maintenance never ends, which no bubble outlives.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, f := range change {
		f(o)
	}
	client := redis.NewClient(o)
	s, err := New(client, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (f *fake) dial(context.Context, string, string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.how == refuse {
		return nil, errors.New("connection refused")
	}
	here, there := net.Pipe()
	f.conns = append(f.conns, there)
	go f.serve(there)
	return here, nil
}

func (f *fake) serve(conn net.Conn) {
	defer conn.Close()
	commands := make(chan []string, 100) // more than a client sends before it reads
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer close(commands)
		for r := bufio.NewReader(conn); ; {
			words, err := readCommand(r)
			if err != nil {
				return
			}
			commands <- words
		}
	}()
	for words := range commands {
		name := strings.ToLower(words[0])
		if name == "eval" && words[1] == resetScript {
			name = "reset"
		}
		f.mu.Lock()
		switch name {
		case "reset":
			f.resets++
		case "evalsha", "eval":
			switch n := len(f.probes); {
			case !strings.Contains(words[3], "{=trial"):
				f.calls++
			case n == 0 || f.probes[n-1] != time.Now(): // not the second call of one
				f.probes = append(f.probes, time.Now())
			}
		}
		f.mu.Unlock()
		if !f.await(gone, name) {
			return
		}
		f.run(name, words)
		reply := "+OK\r\n"
		switch name {
		case "hello":
			reply = "-ERR unknown command\r\n"
		case "evalsha", "eval":
			text := ""
			if words[1] == decideScript.sha || words[1] == decideScript.source {
				text = f.script(words)
			}
			reply = fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
		}
		switch f.current() {
		case hangUp, refuse:
			return
		case fail:
			reply = f.refusal()
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
	}
}

// refuseWith makes the fake fail with a text.
func (f *fake) refuseWith(text string) {
	f.be(fail)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text = text
}

func (f *fake) refusal() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return "-" + cmp.Or(f.text, "OOM command not allowed") + "\r\n"
}

func (f *fake) current() how {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.how
}

// await waits while the fake is silent.
func (f *fake) await(gone chan struct{}, command string) bool {
	for {
		f.mu.Lock()
		silent, changed := f.how == silence, f.changed
		if silent && f.let > 0 {
			silent = false
			if strings.HasPrefix(command, "eval") {
				f.let--
			}
		}
		f.mu.Unlock()
		if !silent {
			return true
		}
		select {
		case <-changed:
		case <-gone:
			return false
		}
	}
}

// run takes the time that the command does, also if the client has gone.
func (f *fake) run(name string, words []string) {
	f.thread <- struct{}{}
	defer func() { <-f.thread }()
	f.mu.Lock()
	takes := f.takes
	f.mu.Unlock()
	if takes != nil && strings.HasPrefix(name, "eval") {
		<-time.After(takes(words[3]))
	}
}

// script counts the questions and admits them.
func (f *fake) script(words []string) string {
	keys, _ := strconv.Atoi(words[2])
	questions, numbers := words[3+keys+1][scripted+1:], words[3+keys+2]
	out := string(step.AppendWord(nil, time.Now().UnixMicro()))
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	defer func() {
		if strings.Contains(words[3], "{=trial") {
			f.asked = asked
		}
	}()
	for len(questions) > 0 {
		if questions[0] == modeExtra {
			questions = questions[1+step.WordBytes:]
			out += strings.Repeat("\x00", step.WordBytes)
		}
		mode, left, algorithm, place := questions[0], questions[1], questions[2], int(questions[6])<<8|int(questions[7])
		switch {
		case mode == modeSettle:
			out += "\x03" + strings.Repeat("\x00", step.WordBytes)
		case step.Algorithm(algorithm) == step.SlidingLog:
			out += "\x03" + strings.Repeat("\x00", 29)
		case step.Algorithm(algorithm) == step.SlidingWindow:
			out += "\x03" + strings.Repeat("\x00", step.WordBytes*(5+int(step.Word(numbers[place-1+step.WordBytes:]))))
		default:
			out += "\x03" + strings.Repeat("\x00", 2*step.WordBytes)
		}
		if left == 0 {
			f.asked++
		}
		questions = questions[cellLength(questions):]
	}
	return out
}

// cellLength is how long the cell is with which a text begins.
func cellLength(text string) int {
	switch {
	case text[0] == modeSettle:
		return cellBytes + 3*step.WordBytes
	case text[8] == 0:
		return cellBytes + step.WordBytes
	}
	return cellBytes
}

func readCommand(r *bufio.Reader) ([]string, error) {
	number := func(kind byte) (int, error) {
		line, err := r.ReadString('\n')
		if err != nil || line[0] != kind {
			return 0, io.ErrUnexpectedEOF
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		words[i] = string(b[:size])
	}
	return words, nil
}
