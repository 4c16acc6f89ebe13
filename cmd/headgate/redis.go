package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/redisdoc"
	"github.com/headgate/headgate/internal/old/limits/yamldoc"
	"github.com/headgate/headgate/internal/redisurl"
)

// A connection is what the flags say about Redis.
type connection struct {
	url, key string
	cluster  bool
	timeout  time.Duration
}

func (c *call) redisFlags() *connection {
	r := &connection{}
	c.flags.StringVar(&r.url, "redis", "", "the `URL` of Redis, such as redis://user:password@host:6379/0, or in HEADGATE_REDIS")
	c.flags.StringVar(&r.key, "document", redisdoc.DefaultKey, "the `key` of the document in Redis")
	c.flags.BoolVar(&r.cluster, "cluster", false, "it is a Cluster")
	c.flags.DurationVar(&r.timeout, "timeout", 5*time.Second, "the `time` that an answer may take")
	return r
}

// connect returns a client. The error has no password.
func (r *connection) connect() (redis.UniversalClient, error) {
	url := cmp.Or(r.url, os.Getenv("HEADGATE_REDIS")) // which is no default, as those are printed
	if url == "" {
		return nil, errors.New("name a server with -redis, or in HEADGATE_REDIS")
	}
	o, err := redisurl.Parse(url)
	if err != nil {
		return nil, err
	}
	all := &redis.UniversalOptions{
		Addrs: []string{o.Addr}, Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLSConfig,
		ContextTimeoutEnabled: true, MaxRetries: -1, DialTimeout: r.timeout, ReadTimeout: r.timeout,
	}
	if r.cluster {
		return redis.NewClusterClient(all.Cluster()), nil
	}
	return redis.NewUniversalClient(all), nil
}

// silent keeps the client from telling errors, which are told once.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// A storeConnection is what the flags say about the store of the servers, too.
type storeConnection struct {
	*connection

	prefix, secretFile string
}

func (c *call) storeFlags() *storeConnection {
	r := &storeConnection{connection: c.redisFlags()}
	c.flags.StringVar(&r.prefix, "prefix", "", "the Prefix of the store's Config")
	c.flags.StringVar(&r.secretFile, "secret-file", "", "the store's Secret is in this `file`, or in HEADGATE_SECRET")
	return r
}

// open returns the store of the servers, and its client, which is to be closed.
func (r *storeConnection) open() (*redisstore.Store, redis.UniversalClient, error) {
	secret, err := r.secret()
	if err != nil {
		return nil, nil, err
	}
	client, err := r.connect()
	if err != nil {
		return nil, nil, err
	}
	store, err := redisstore.New(client, redisstore.Config{
		Prefix: r.prefix, Secret: secret, Timeout: r.timeout, Failure: redisstore.FailClosed, RefusalTTL: -1,
	})
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return store, client, nil
}

// secret returns the store's secret, or nil.
func (r *storeConnection) secret() ([]byte, error) {
	if r.secretFile == "" {
		return []byte(os.Getenv("HEADGATE_SECRET")), nil
	}
	text, err := os.ReadFile(r.secretFile)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) { // who gives the secret for its file must not see it printed
			err = path.Err
		}
		return nil, fmt.Errorf("the file of -secret-file: %w", err)
	}
	secret := []byte(strings.TrimRight(string(text), "\r\n"))
	if len(secret) == 0 {
		return nil, errors.New("the file of -secret-file is empty")
	}
	return secret, nil
}

// An untold source is not told of this process.
type untold struct{ limits.Source }

// peek prints what a key has left.
func peek(ctx context.Context, c *call) (int, error) {
	return c.withLimit(ctx, func(ctx context.Context, a *asked) (int, error) {
		l := a.view.Limiter(a.limit, a.plan, a.key)
		d, err := l.Peek(ctx, a.key)
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
		policies := l.Policies()
		for i := range d.Len() {
			a := d.Answer(i)
			one := answer{a.Policy, policies[i].Named("").String(), a.Limit, a.Remaining, wait(a.ResetAfter), ""}
			if !a.Allowed {
				one.RetryAfter = wait(a.RetryAfter)
			}
			all = append(all, one)
		}
		code := exitOK
		if !d.Allowed {
			code = exitNo
		}
		return code, c.print(map[string]any{"allowed": d.Allowed, "policies": all}, func() {
			for _, a := range all {
				c.printf("%s: %s: %d of %d left, all in %s", a.Policy, a.Rule, a.Remaining, a.Limit, a.ResetAfter)
				if a.RetryAfter != "" {
					c.printf("; refused for %s", a.RetryAfter)
				}
				c.printf("\n")
			}
		})
	})
}

// wait returns a wait for people.
func wait(d time.Duration) string {
	if d == core.Never {
		return "forever"
	}
	if d > 48*time.Hour {
		return fmt.Sprintf("%.1f days", d.Hours()/24)
	}
	if d > time.Second {
		d = d.Round(time.Second)
	}
	return d.String()
}

// reset forgets what a key has used under any plan, and by its override.
func reset(ctx context.Context, c *call) (int, error) {
	return c.withLimit(ctx, func(ctx context.Context, a *asked) (int, error) {
		name := a.limit.Name()
		own := a.view.Limiter(a.limit, "unlimited", a.key) // of its override
		all := append(slices.DeleteFunc(a.view.Limiters(), func(l *core.Limiter) bool { return l.Name() != name }), own)
		for _, l := range all {
			if err := l.Reset(ctx, a.key); err != nil {
				return 0, err
			}
		}
		return exitOK, c.print(map[string]any{"reset": true}, func() { c.printf("what the key has used of %q is forgotten\n", name) })
	})
}

// An asked limit is the one of LIMIT KEY -plan.
type asked struct {
	view      limits.View
	limit     *limits.Limit
	plan, key string
}

// withLimit parses LIMIT KEY -plan, and calls f with the limit.
func (c *call) withLimit(ctx context.Context, f func(ctx context.Context, a *asked) (int, error)) (int, error) {
	r := c.storeFlags()
	file := c.flags.String("limits", "", "the limits are those of this `file`, not those in Redis")
	plan := c.flags.String("plan", "", "the `plan` of the key; its overrides apply too")
	words, err := c.parse(2, 2)
	if err != nil {
		return 0, err
	}
	limitName, key := words[0], words[1]
	if key == "-" { // so that it is not in the list of processes
		line, err := bufio.NewReader(c.stdin).ReadString('\n')
		if err != nil && line == "" {
			return 0, errors.New("there is no key on standard input")
		}
		key = strings.TrimRight(line, "\r\n")
	}
	store, client, err := r.open()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	source := limits.File(*file)
	if *file == "" {
		inRedis, err := redisdoc.New(client, redisdoc.Config{Key: r.key})
		if err != nil {
			return 0, err
		}
		source = untold{inRedis}
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	book, err := limits.Open(ctx, store, true, source, limits.Config{Decode: yamldoc.Decode, Timeout: r.timeout, Every: time.Hour})
	if err != nil {
		return 0, err
	}
	defer book.Close()
	limit, err := book.Limit(limitName)
	if err != nil {
		return 0, err
	}
	a := &asked{book.View(), limit, *plan, key}
	if _, known := a.view.Find(limitName, a.plan, ""); !known { // no override is for the empty key
		return 0, fmt.Errorf("the limit has no plan %q", a.plan)
	}
	return f(ctx, a)
}

// doctor prints what the store's Check has found.
func doctor(ctx context.Context, c *call) (int, error) {
	r := c.storeFlags()
	if _, err := c.parse(0, 0); err != nil {
		return 0, err
	}
	store, client, err := r.open()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*r.timeout)
	defer cancel()
	report, err := store.Check(ctx)
	if err != nil {
		return 0, fmt.Errorf("a server does not answer: %w", err)
	}
	source, err := redisdoc.New(client, redisdoc.Config{Key: r.key})
	if err != nil {
		return 0, err
	}
	version, servers, wrong := examine(ctx, source)
	problems := append(append([]string{}, report.Problems...), wrong...)
	code := exitOK
	if len(problems) > 0 {
		code = exitNo
	}
	return code, c.print(map[string]any{"redis": report.Servers, "problems": problems, "version": version, "servers": servers}, func() {
		for _, s := range report.Servers {
			s.Address, s.Version, s.MaxMemoryPolicy = visible(s.Address), visible(s.Version), visible(s.MaxMemoryPolicy)
			one := redisstore.Report{Servers: []redisstore.ServerReport{s}}
			fmt.Fprint(c.stdout, &one)
		}
		for _, p := range problems {
			c.printf("problem: %s\n", p)
		}
		for _, s := range servers {
			c.printf("server %s: limits of version %s\n", s.Instance, s.Version)
		}
		if len(problems) == 0 {
			c.printf("no problem was found\n")
		}
	})
}

// examine returns the version of the document, the servers, and what is wrong with either.
func examine(ctx context.Context, source *redisdoc.Source) (version int64, servers []redisdoc.Server, problems []string) {
	tell := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	_, version, err := source.Current(ctx)
	if err != nil {
		tell("%v", err)
	}
	if servers, err = source.Servers(ctx); err != nil {
		tell("%v", err)
	}
	for _, s := range servers {
		switch {
		case s.Err != "":
			tell("the server %s stays with version %s of the limits: %s", s.Instance, s.Version, s.Err)
		case s.Found < version:
			tell("the server %s has not read the newest limits, but has version %s", s.Instance, s.Version)
		}
		if off := s.ClockOffset.Abs(); off > redisstore.MaxClockOffset+maxAsking {
			tell("the clock of the server %s is %v off from the clock of Redis: set it", s.Instance, off.Round(100*time.Millisecond))
		}
	}
	return version, servers, problems
}

// maxAsking is how long servers take to ask for the time, at most, unless they are very busy.
const maxAsking = time.Second

// storeFlag is what store servers have of which nothing is known.
func (c *call) storeFlag() *string {
	return c.flags.String("store", "redis", "the `store` of servers that tell none: redis, or memory with its MaxBytes if it is not the default")
}

// noDocument is the version of none.
const noDocument = "none"

// A publication is a push under way.
type publication struct {
	*call

	source     *redisdoc.Source
	document   *limits.Document
	kind, from string
	loseUsage  bool
	replaces   int64  // in Redis
	base       string // the version of that document
	result     map[string]any
}

// push publishes a document in Redis, and waits until all servers have it.
func push(ctx context.Context, c *call) (int, error) {
	r, p := c.redisFlags(), &publication{call: c}
	c.flags.BoolVar(&p.loseUsage, "lose-usage", false, "push it although usage is lost; servers refuse it unless their program accepts it too")
	c.flags.StringVar(&p.from, "from", "", "push it only in the place of this `version`, none for no document: nobody else has pushed since")
	dry := c.flags.Bool("dry-run", false, "only say what would change")
	patience := c.flags.Duration("wait", 15*time.Second, "wait this `time` for all servers")
	kind := c.storeFlag()
	words, err := c.parse(1, 1)
	if err != nil {
		return 0, err
	}
	p.kind = *kind
	if p.document, err = c.must(words[0]); err != nil {
		return 0, err
	}
	if err := published(p.document); err != nil {
		return 0, err
	}
	client, err := r.connect()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	if p.source, err = redisdoc.New(client, redisdoc.Config{Key: r.key}); err != nil {
		return 0, err
	}
	p.result = map[string]any{"version": p.document.Version(), "changes": []jsonChange{}, "pushed": false}
	ask, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	code, why, err := p.refused(ask, words[0])
	if err != nil {
		return 0, err
	}
	if why == "" && *dry {
		why = fmt.Sprintf("version %s in the place of %s; to push it, give -from %[2]s", p.document.Version(), p.base)
	}
	if why != "" {
		return code, p.not(why)
	}
	return p.publish(ctx, r.timeout, *patience)
}

// not prints why the document is not pushed.
func (p *publication) not(why string) error {
	p.result["why"] = why
	return p.print(p.result, func() { p.printf("not pushed: %s\n", why) })
}

// refused compares the document with the one in Redis and with the servers, and returns why it is
// not pushed, if it is not.
func (p *publication) refused(ctx context.Context, file string) (code int, why string, err error) {
	servers, err := p.source.Servers(ctx) // before the comparison, which may take seconds
	if err != nil {
		return 0, "", err
	}
	text, version, err := p.source.Current(ctx)
	torn := errors.Is(err, redisdoc.ErrTorn)
	if err != nil && !torn {
		return 0, "", err
	}
	if torn && version == 0 {
		p.warnf("headgate push: what is in Redis is no document, and is replaced\n")
	}
	p.replaces, p.base = version, noDocument
	var diff limits.Diff
	if version > 0 {
		was, err := limits.Parse([]byte(text), yamldoc.Decode)
		if err != nil {
			p.warnf("headgate push: what is in Redis is not valid, and cannot be compared: %v\n", err)
			p.base = "an invalid document"
		} else {
			p.base, diff = was.Version(), limits.Compare(was, p.document)
		}
	}
	p.result["replaces"] = p.base
	if p.from != "" && p.from != p.base {
		return exitNo, fmt.Sprintf("Redis has %s, not %s: somebody else has pushed, so compare again", p.base, p.from), nil
	}
	p.result["changes"] = changes(diff)
	if !p.json {
		p.printDiff(diff)
	}
	all, err := fleetOf(servers, p.kind)
	if err != nil {
		return 0, "", err
	}
	faults := all.refuse(p.document)
	p.result["faults"] = jsonFaults(faults)
	for _, f := range faults {
		p.warnf("%s\n", at(file, f))
	}
	if len(faults) > 0 {
		return exitNo, "servers would refuse it", nil
	}
	if len(diff.Lost()) > 0 && !p.loseUsage {
		p.result["lost"] = true
		return exitLoss, "usage would be lost; see -lose-usage", nil
	}
	return exitOK, "", nil
}

// publish writes the document, and waits for the servers.
func (p *publication) publish(ctx context.Context, timeout, patience time.Duration) (int, error) {
	ask, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pushed, err := p.source.Push(ask, p.document, p.replaces)
	if errors.Is(err, redisdoc.ErrConflict) {
		return exitNo, p.not("somebody else has pushed meanwhile, so compare again")
	}
	if err != nil {
		return 0, err
	}
	p.result["pushed"] = true
	servers, late, err := await(ctx, p.source, p.document.Version(), pushed, patience)
	if err != nil {
		return 0, err
	}
	p.result["servers"], p.result["late"] = servers, late
	code := exitOK
	if len(late) > 0 {
		code = exitNo
	}
	return code, p.print(p.result, func() {
		p.printf("version %s: %d servers have it\n", p.document.Version(), servers)
		for _, s := range late {
			p.printf("the server %s has version %s: %s\n", s.Instance, s.Version, cmp.Or(s.Err, "it has not answered yet"))
		}
	})
}

// await waits until all servers have the version, or have refused it.
func await(ctx context.Context, source *redisdoc.Source, version string, pushed int64, patience time.Duration) (have int, late []redisdoc.Server, err error) {
	const pause = 100 * time.Millisecond
	end := time.After(patience)
	for {
		servers, err := source.Servers(ctx)
		if err != nil {
			return 0, nil, err
		}
		have, late = 0, nil
		waiting := false
		for _, s := range servers {
			if s.Version == version {
				have++
				continue
			}
			late = append(late, s)
			waiting = waiting || s.Found < pushed
		}
		if !waiting {
			return have, late, nil
		}
		select {
		case <-time.After(pause):
		case <-end:
			return have, late, nil
		case <-ctx.Done():
			return have, late, nil
		}
	}
}
