package redisrates

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/step"
)

// A speaker is a server that speaks the protocol of Redis, and admits everything, or answers its scripts with an error.
type speaker struct {
	fails func(name, script string, keys []string) bool
	text  string

	mu      sync.Mutex
	healthy bool
	calls   int
}

// heal makes it work from now on, and returns how many calls it was asked before.
func (s *speaker) heal() (calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.healthy = true
	return s.calls
}

func (s *speaker) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go s.serve(server)
	return client, nil
}

func (s *speaker) serve(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for {
		words, err := readWords(r)
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, s.reply(words)); err != nil {
			return
		}
	}
}

// readWords reads a command.
func readWords(r *bufio.Reader) (words []string, err error) {
	count := 0
	if _, err := fmt.Fscanf(r, "*%d\r\n", &count); err != nil {
		return nil, err
	}
	for range count {
		length := 0
		if _, err := fmt.Fscanf(r, "$%d\r\n", &length); err != nil {
			return nil, err
		}
		word := make([]byte, length+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:length]))
	}
	return words, nil
}

func (s *speaker) reply(words []string) string {
	name := strings.ToLower(words[0])
	switch name {
	case eval, evalSHA:
	case "hello":
		return "-ERR unknown command 'HELLO'\r\n"
	default:
		return "+OK\r\n"
	}
	count, _ := strconv.Atoi(words[2])
	keys := words[3 : 3+count]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if !s.healthy && s.fails(name, words[1], keys) {
		return "-" + s.text + "\r\n"
	}
	text := string(appendWord(nil, time.Now().UnixMicro())) + strings.Repeat("\x07", count)
	if words[1] == probeSource {
		text = ""
	}
	return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
}

func always(string, string, []string) bool { return true }

// severalSlots is how a server fails that checks hash slots.
func severalSlots(_, _ string, keys []string) bool {
	for _, key := range keys {
		if rediskey.HashSlot([]byte(key)) != rediskey.HashSlot([]byte(keys[0])) {
			return true
		}
	}
	return false
}

// What follows from an error of Redis: docs/redis.md has the same.
const (
	sentAgain = iota // nothing was run: it is sent again, and nobody notices
	slotAway         // its hash slot is not served: the failure policy decides about its keys, which is told once
	slotMoves        // the same for a moment: it is told if it lasts for a second
	away             // the server is away: it is told once, and only probes are sent
)

var errorsOfRedis = []struct {
	text   string
	fails  func(name, script string, keys []string) bool
	expect int
}{
	{"NOSCRIPT No matching script. Please use EVAL.", func(name, _ string, _ []string) bool { return name == evalSHA }, sentAgain},
	{"ERR user_script:35: Script attempted to access nonexistent global variable 'struct'", func(name, script string, _ []string) bool {
		return script != probeSource && !strings.HasPrefix(script, preludeSource) && script != portableScripts[0].sha
	}, sentAgain},
	{"CROSSSLOT Keys in request don't hash to the same slot", severalSlots, sentAgain},
	{"MOVED 3999 127.0.0.1:6381", always, slotAway},
	{"CLUSTERDOWN Hash slot not served", always, slotAway},
	{"ASK 3999 127.0.0.1:6381", always, slotMoves},
	{"TRYAGAIN Multiple keys request during rehashing of slot", always, slotMoves},
	{"CLUSTERDOWN The cluster is down", always, away},
	{"CLUSTERDOWN The cluster is down and only accepts read commands", always, away},
	{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", always, away},
	{"UNKILLABLE The busy script was sent by a master instance in the context of replication", always, away},
	{"LOADING Redis is loading the dataset in memory", always, away},
	{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", always, away},
	{"READONLY You can't write against a read only replica.", always, away},
	{"ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.", always, away},
	{"NOREPLICAS Not enough good replicas to write.", always, away},
	{"MISCONF Errors writing to the AOF file: No space left on device", always, away},
	{"OOM command not allowed when used memory > 'maxmemory'.", always, away},
	{"OOM command not allowed when used memory > 'maxmemory'. script: 1, on @user_script:1.", always, away},
	{"NOAUTH Authentication required.", always, away},
	{"WRONGPASS invalid username-password pair or user is disabled.", always, away},
	{"NOPERM User app has no permissions to run the 'evalsha' command", always, away},
	{"NOPERM No permissions to access a key", always, away},
	{"DENIED Redis is running in protected mode because protected mode is enabled", always, away},
	{"NOPROTO unsupported protocol version", always, away},
	{"REDIRECT 127.0.0.1:6381", always, away}, // of Valkey
	{"NOMASTERLINK Can't SYNC while not connected with my master", always, away},
	{"INPROG Failover already in progress", always, away},
	{"NOGOODSLAVE No suitable replica to promote", always, away},
	{"NOQUORUM 1 usable Sentinels.", always, away},
	{"NOTBUSY No scripts in execution right now.", always, away},
	{"UNBLOCKED force unblock from blocking operation", always, away},
	{"EXECABORT Transaction discarded because of previous errors.", always, away},
	{"IOERR error or timeout connecting to the client", always, away},
	{"WRONGTYPE Operation against a key holding the wrong kind of value", always, away}, // which the scripts take for a foreign value
	{"BUSYKEY Target key name already exists.", always, away},
	{"BUSYGROUP Consumer Group name already exists", always, away},
	{"NOGROUP No such key", always, away},
	{"NOSUB 'unsubscribe' command executed not in subscribed mode", always, away}, // of Valkey
	{"INVALIDOBJ Corrupted HLL object detected", always, away},
	{"ERR max number of clients reached", always, away},
	{"ERR unknown command 'evalsha'", always, away},
	{"ERR upstream failure", always, away}, // of a proxy
	{"ANYTHING else", always, away},
}

// Whatever Redis answers, a process that decides by itself because of it says so, once, and stops when Redis works again.
func TestErrorsOfRedis(t *testing.T) {
	for _, c := range errorsOfRedis {
		t.Run(c.text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &speaker{text: c.text, fails: c.fails}
				client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: server.dial, ContextTimeoutEnabled: true, MaxRetries: -1})
				defer client.Close()
				var told []error
				var toldAfter []time.Duration
				start := time.Now()
				s, err := New(client, Config{RefusalTTL: -1, Changed: func(reason error) {
					told = append(told, reason)
					toldAfter = append(toldAfter, time.Since(start))
				}})
				if err != nil {
					t.Fatal(err)
				}
				p := &s.limiter(t, "api", bucket(1_000_000, 24*time.Hour))[0]
				locally := askForAWhile(t, s, p)
				calls := server.heal()
				askForAWhile(t, s, p)
				if n := askForAWhile(t, s, p); n > 0 {
					t.Errorf("%d are decided locally though it works", n)
				}
				if often := calls > asked/4; often != (c.expect != away) {
					t.Errorf("it was asked %d times", calls)
				}
				if c.expect == sentAgain {
					if locally > 0 || len(told) > 0 {
						t.Errorf("%d decided locally, told %v", locally, told)
					}
					return
				}
				if locally != asked || len(told) != 2 || told[0] == nil || told[1] != nil {
					t.Fatalf("%d decided locally, told %v", locally, told)
				}
				lasted := toldAfter[0] >= maxPassing
				if lasted != (c.expect == slotMoves) || toldAfter[0] > maxPassing+100*time.Millisecond {
					t.Errorf("told after %v", toldAfter)
				}
			})
		})
	}
}

const asked = 4 * 300 // by askForAWhile

// askForAWhile has four callers ask for three seconds, and returns how often they were answered locally.
func askForAWhile(t *testing.T, s *Decider, p *step.Policy) (locally int) {
	for range asked / 4 {
		var all sync.WaitGroup
		var sources [4]step.Source
		for i := range sources {
			all.Go(func() {
				source, err := s.askFor(t.Context(), p, strconv.Itoa(i))
				if err != nil {
					t.Error(err)
				}
				sources[i] = source
			})
		}
		all.Wait()
		for _, source := range sources {
			if source != step.SourceStore {
				locally++
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return locally
}
