package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/docstore"
	"github.com/headgate/headgate/internal/document"
	"github.com/headgate/headgate/internal/redisurl"
	"github.com/headgate/headgate/limits"
)

// documentKey is where a document is unless another key is given.
//
// All commands of this file go the same way: they declare their flags, parse the arguments, connect, and have a timeout
// for what they ask of Redis. Two kinds of flags say where that is:
//
//	redisFlags   push, pull         the server, and the key of the document in it
//	storeFlags   peek, reset, ping  the same, and the prefix and the secret of the servers' store
const documentKey = "headgate-limits"

// A connection is what the flags say about Redis.
type connection struct {
	url, key     string
	passwordFile string
	timeout      time.Duration
}

// redisFlags declares the flags of commands that need Redis. None of them has a default that is a secret: usage prints
// defaults.
func (c *call) redisFlags() *connection {
	server := &connection{}
	c.flags.StringVar(&server.url, "redis", "",
		"the `URL` of Redis, such as redis://user:password@host:6379/0, or in HEADGATE_REDIS")
	c.flags.StringVar(&server.key, "document", documentKey, "the `key` of the document in Redis")
	c.flags.StringVar(&server.passwordFile, "redis-password-file", "",
		"the password of Redis is in this `file`, not in the URL")
	c.flags.DurationVar(&server.timeout, "timeout", 5*time.Second, "the `time` that an answer may take")
	return server
}

// connect returns a client. The error has no password. A client asks nobody until it has a command, so a server that is
// away is found out later. The caller closes it.
func (r *connection) connect() (redis.UniversalClient, error) {
	url := cmp.Or(r.url, os.Getenv("HEADGATE_REDIS"))
	if url == "" {
		return nil, errors.New("name a server with -redis, or in HEADGATE_REDIS")
	}
	return redisurl.Open(url, redisurl.Config{PasswordFile: r.passwordFile, Timeout: r.timeout})
}

// silent keeps the client from telling errors, which are told once.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// A storeConnection is what the flags say about the store of the servers, too.
type storeConnection struct {
	*connection

	prefix, secretFile string
}

// storeFlags declares the flags of commands that need the store of the servers.
func (c *call) storeFlags() *storeConnection {
	server := &storeConnection{connection: c.redisFlags()}
	c.flags.StringVar(&server.prefix, "prefix", "", "the Prefix of the store's Config")
	c.flags.StringVar(&server.secretFile, "secret-file", "",
		"the store's Secret is in this `file`, or in HEADGATE_SECRET")
	return server
}

// open returns the store of the servers. It fails rather than decide without Redis, and remembers no refusal: what it
// says is what Redis has now. The prefix and the secret have to be those of the servers: under others there are other
// values, and every key is fresh.
func (r *storeConnection) open(client redis.UniversalClient) (*redisstore.Store, error) {
	secret, err := r.secret()
	if err != nil {
		return nil, err
	}
	return redisstore.New(client, redisstore.Config{
		Prefix: r.prefix, Secret: secret, Timeout: r.timeout, Failure: redisstore.FailClosed, RefusalTTL: -1,
	})
}

// secret returns the store's secret, or nil. No flag has it, since others see the arguments of a process. An empty
// variable is no secret.
func (r *storeConnection) secret() ([]byte, error) {
	if r.secretFile == "" {
		return []byte(os.Getenv("HEADGATE_SECRET")), nil
	}
	secret, err := redisurl.Read(r.secretFile)
	if err != nil {
		return nil, fmt.Errorf("the file of -secret-file: %w", err)
	}
	return []byte(secret), nil
}

// peek prints what a key has left.
//
//	{"allowed": true, "policies": [{"policy": "minute", "rule": "sliding-log 60/minute", "remaining": 58, ...}]}
func peek(ctx context.Context, command *call) (int, error) {
	return command.withLimit(ctx, func(ctx context.Context, limiter *core.Limiter, key string) (int, error) {
		// The policies that apply to the key are those of its override, if it has one.
		decision, err := limiter.Peek(ctx, key)
		if err != nil {
			return 0, err
		}
		policies, err := limiter.Backend().Of(key)
		if err != nil {
			return 0, err
		}
		type answer struct {
			Policy     string `json:"policy"`
			Rule       string `json:"rule"`
			Limit      int64  `json:"limit"`
			Remaining  int64  `json:"remaining"`
			ResetAfter string `json:"reset_after"`
			RetryAfter string `json:"retry_after,omitempty"`
		}
		var all []answer
		for found := range decision.Answers() { // in the order of the policies
			rule := policies.List[len(all)].Numbers.String()
			one := answer{found.Policy, rule, found.Limit, found.Remaining, wait(found.ResetAfter), ""}
			if !found.Allowed {
				one.RetryAfter = wait(found.RetryAfter)
			}
			all = append(all, one)
		}
		code := exitOK
		if !decision.Allowed {
			code = exitNo
		}
		return code, command.print(map[string]any{"allowed": decision.Allowed, "policies": all}, func() {
			for _, one := range all {
				const text = "%s: %s: %d of %d left, all in %s"
				command.printf(text, one.Policy, one.Rule, one.Remaining, one.Limit, one.ResetAfter)
				if one.RetryAfter != "" {
					command.printf("; refused for %s", one.RetryAfter)
				}
				command.printf("\n")
			}
		})
	})
}

// wait returns a wait for people: of days nobody wants the seconds.
func wait(span time.Duration) string {
	if span == core.Never {
		return "forever"
	}
	if span > 48*time.Hour {
		return fmt.Sprintf("%.1f days", span.Hours()/24)
	}
	if span > time.Second {
		span = span.Round(time.Second)
	}
	return span.String()
}

// reset forgets what a key has used under any plan, and by its override.
func reset(ctx context.Context, command *call) (int, error) {
	return command.withLimit(ctx, func(ctx context.Context, limiter *core.Limiter, key string) (int, error) {
		if err := limiter.Reset(ctx, key); err != nil {
			return 0, err
		}
		return exitOK, command.print(map[string]any{"reset": true}, func() {
			command.printf("what the key has used of %q is forgotten\n", limiter.Name())
		})
	})
}

// A keyFunc does what a command is for, with a limiter and a key. It returns the exit code.
type keyFunc func(ctx context.Context, limiter *core.Limiter, key string) (int, error)

// withLimit parses LIMIT KEY -plan, and calls a function with the limiter and the key. The limits are those that
// servers have now, unless a file is named: so the answer is that which they would give.
func (c *call) withLimit(ctx context.Context, do keyFunc) (int, error) {
	server := c.storeFlags()
	file := c.flags.String("limits", "", "the limits are those of this `file`, not those in Redis")
	plan := c.flags.String("plan", "", "the `plan` of the key; its overrides apply too")
	words, err := c.parse(2, 2)
	if err != nil {
		return 0, err
	}
	name := words[0]
	key := words[1]
	if key == "-" { // so that it is not in the list of processes
		line, err := bufio.NewReader(c.stdin).ReadString('\n')
		if err != nil && line == "" {
			return 0, errors.New("there is no key on standard input")
		}
		key = strings.TrimRight(line, "\r\n")
	}
	client, err := server.connect()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	store, err := server.open(client)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, server.timeout)
	defer cancel()
	text, parsed, err := server.document(ctx, c, client, *file)
	if err != nil {
		return 0, err
	}
	// In a program, a plan that is not there is the default one. Here it is a mistake of typing.
	limit := parsed.Limits[name]
	if limit != nil && *plan != "" && limit.Plans[*plan] == nil {
		return 0, fmt.Errorf("the limit has no plan %q", *plan)
	}
	// The limiter of a book, as servers have it, so that overrides apply as they do there.
	source := func(context.Context) ([]byte, error) { return text, nil }
	book, err := limits.Open(ctx, store, source, limits.Config{})
	if err != nil {
		return 0, err
	}
	defer book.Close()
	limiter, err := book.Limiter(name)
	if err != nil {
		return 0, err
	}
	return do(ctx, limiter.Plan(*plan), key)
}

// document returns the document of a file, or if there is none the one in Redis.
func (r *connection) document(
	ctx context.Context, command *call, client redis.UniversalClient, file string,
) ([]byte, *document.Document, error) {
	if file != "" {
		return command.must(file)
	}
	text, _, err := r.location(client).Read(ctx)
	if err != nil {
		return nil, nil, err
	}
	parsed, err := document.Parse(text)
	return text, parsed, err
}

// location returns where the document is in Redis.
func (r *connection) location(client redis.UniversalClient) docstore.Location {
	return docstore.Location{Client: client, Key: r.key}
}

// ping tries what the store needs of Redis. A server that does not answer is trouble, and one that answers and lacks
// something is a no.
func ping(ctx context.Context, command *call) (int, error) {
	server := command.storeFlags()
	if _, err := command.parse(0, 0); err != nil {
		return 0, err
	}
	client, err := server.connect()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	store, err := server.open(client)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, server.timeout)
	defer cancel()
	// Of a server that does not answer, the checks would say so several times.
	if err := client.Ping(ctx).Err(); err != nil {
		return 0, fmt.Errorf("the server does not answer: %w", err)
	}
	problems := []string{}
	code := exitOK
	if err := store.Check(ctx); err != nil { // a line for each problem
		problems = strings.Split(err.Error(), "\n")
		code = exitNo
	}
	return code, command.print(map[string]any{"problems": problems}, func() {
		for _, text := range problems {
			command.printf("problem: %s\n", strings.TrimPrefix(text, "headgate: redisstore: "))
		}
		if len(problems) == 0 {
			command.printf("no problem was found\n")
		}
	})
}

// pull prints the document in Redis. It does not look whether the document is valid: what is there has to be had, above
// all if it is not.
func pull(ctx context.Context, command *call) (int, error) {
	server := command.redisFlags()
	if _, err := command.parse(0, 0); err != nil {
		return 0, err
	}
	client, err := server.connect()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, server.timeout)
	defer cancel()
	text, version, err := server.location(client).Read(ctx)
	if err != nil {
		return 0, err
	}
	// A file gets the bytes as they are: a document that comes back changed may be valid, and mean something else.
	return exitOK, command.print(map[string]any{"version": version, "document": string(text)}, func() {
		if command.stdout.isTerminal() {
			text = []byte(escaped(string(text), "\t\n"))
		}
		_, _ = command.stdout.Write(text)
	})
}

// noDocument is the version of none.
const noDocument = "none"

// A publication is a push under way.
//
//	read what is there ─ compare ─┬ -from another version: not pushed
//	                              ├ -dry-run: not pushed
//	                              └ write, if that is still there ─ await the servers
//
//	{"version": "c3a9...", "replaces": "5f0d...", "changes": [...], "pushed": true, "servers": 4, "refusals": []}
type publication struct {
	*call

	location docstore.Location
	text     []byte
	document *document.Document
	result   map[string]any
}

// push publishes a document in Redis, and waits until all servers have it.
func push(ctx context.Context, command *call) (int, error) {
	server := command.redisFlags()
	publication := &publication{call: command}
	from := command.flags.String("from", "",
		"push it only in the place of this `version`, none for no document: nobody else has pushed since")
	dry := command.flags.Bool("dry-run", false, "only say what would change")
	patience := command.flags.Duration("wait", 15*time.Second, "wait this `time` for all servers")
	words, err := command.parse(1, 1)
	if err != nil {
		return 0, err
	}
	publication.text, publication.document, err = command.must(words[0])
	if err != nil {
		return 0, err
	}
	client, err := server.connect()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	publication.location = server.location(client)
	ask, cancel := context.WithTimeout(ctx, server.timeout) // for Redis; servers have the patience
	defer cancel()
	// What changes is told first, also if the document is not pushed then.
	replaces, err := publication.compare(ask)
	if err != nil {
		return 0, err
	}
	was := cmp.Or(replaces, noDocument)
	switch {
	case *from != "" && *from != was:
		const text = "Redis has %s, not %s: somebody else has pushed, so compare again"
		return exitNo, publication.not(fmt.Sprintf(text, was, *from))
	case *dry:
		const text = "version %s in the place of %s; to push it, give -from %[2]s"
		return exitOK, publication.not(fmt.Sprintf(text, publication.document.Version, was))
	}
	// In the place of the version that was compared, and of no other: what was told is what changes.
	err = publication.location.Write(ask, publication.text, replaces)
	switch {
	case errors.Is(err, docstore.ErrConflict):
		return exitNo, publication.not("somebody else has pushed meanwhile, so compare again")
	case err != nil:
		return 0, err
	}
	publication.result["pushed"] = true
	return publication.await(ctx, *patience)
}

// not prints why the document is not pushed.
func (p *publication) not(why string) error {
	p.result["why"] = why
	return p.print(p.result, func() { p.printf("not pushed: %s\n", why) })
}

// compare prints what changes, and returns the version that is in Redis. What was not pushed is an error, and stays
// there. What was changed by hand since has the version that was pushed, and is told.
func (p *publication) compare(ctx context.Context) (replaces string, err error) {
	text, replaces, err := p.location.Read(ctx)
	var was *document.Document
	switch {
	case err == nil:
		// An older headgate may have pushed what this one takes for a fault.
		was, err = document.Parse(text)
		if err != nil {
			p.warnf("headgate push: what is in Redis is not valid, and cannot be compared: %v\n", err)
		}
	case errors.Is(err, docstore.ErrByHand):
		p.warnf("headgate push: what is in Redis was changed by hand, and cannot be compared\n")
		replaces, err = p.location.Version(ctx)
		if err != nil {
			return "", err
		}
	case !errors.Is(err, docstore.ErrNone):
		return "", err
	}
	all := list(document.Diff(was, p.document)) // with keys: who has the documents has those, too
	p.result = map[string]any{
		"version": p.document.Version, "replaces": cmp.Or(replaces, noDocument), "changes": all, "pushed": false,
	}
	if !p.json { // in which it is a part of the result, at the end
		p.printChanges(all)
	}
	return replaces, nil
}

// await waits until all servers have the document, or have refused it. The document stays pushed whatever comes of
// that: who has refused it says why, and is to be looked at.
func (p *publication) await(ctx context.Context, patience time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// A server that refuses the document goes on with the old one, so all are told of; also how many have done neither.
	have, refused, err := p.location.Await(ctx, p.document.Version)
	if err != nil {
		const text = "the document is pushed, but the servers cannot be asked: %w"
		return 0, errors.Join(append(refused, fmt.Errorf(text, err))...)
	}
	code := exitOK
	refusals := []string{} // not nil, which would be null in JSON
	if len(refused) > 0 {
		code = exitNo
		refusals = strings.Split(errors.Join(refused...).Error(), "\n")
	}
	p.result["servers"] = have
	p.result["refusals"] = refusals
	return code, p.print(p.result, func() {
		p.printf("version %s: %d servers have it\n", p.document.Version, have)
		for _, text := range refusals {
			p.printf("%s\n", text)
		}
	})
}
