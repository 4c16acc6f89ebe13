package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/limits"
)

// A trial is a document that is tried.
type trial struct {
	file  string
	limit *limits.Limit
	replay

	admitted, refused int
	mode              step.Mode // a Peek: what requests have used is counted afterwards
	units, uncovered  int64     // that were counted then, and of these without room
	keys              map[string]*tally
}

// A tally is what became of the requests of a key.
type tally struct {
	Key      string         `json:"key"`
	Plan     string         `json:"plan,omitempty"` // of the last request
	Requests int            `json:"requests"`
	Refused  int            `json:"refused"`
	First    time.Time      `json:"first"` // refusal
	Last     time.Time      `json:"last"`
	Longest  string         `json:"longest_wait"`
	Policies map[string]int `json:"policies"` // refusals by policy

	longest time.Duration
}

// forgetEvery is after how many requests a replay forgets what is over.
const forgetEvery = 100_000

// try says who would have been refused.
func try(ctx context.Context, c *call) (int, error) {
	var names []string
	const logs = "replay this `file`: common or combined log format, or JSON lines; also compressed; - is standard input; may be repeated"
	c.flags.Func("access-log", logs, func(name string) error {
		names = append(names, name)
		return nil
	})
	name := c.flags.String("limit", "", "try this `limit`; needed if the document has several")
	top := c.flags.Int("top", 10, "print this `number` of keys")
	r := newLogReader()
	c.flags.StringVar(&r.keyField, "key", "", "the `field` that is the key: host, user, path, method ...; of JSON any, as in request.remote_ip")
	c.flags.StringVar(&r.planField, "plan", "", "the `field` whose value is the plan")
	c.flags.StringVar(&r.costField, "cost", "", "the `field` with the units that a request has used, such as bytes; they count afterwards, also beyond the limit")
	c.flags.StringVar(&r.timeField, "time", "", "the `field` of JSON that is the time")
	files, err := c.parse(1, 2)
	if err != nil {
		return 0, err
	}
	if len(names) == 0 {
		return 0, errors.New("name a log with -access-log")
	}
	secret, err := c.secret()
	if err != nil {
		return 0, err
	}
	var trials []*trial
	for _, file := range files {
		t, err := c.newTrial(ctx, file, *name, secret)
		if err != nil {
			return 0, err
		}
		defer t.limit.Book().Close()
		if r.costField != "" {
			t.mode = step.Peek
		}
		trials = append(trials, t)
	}
	s := &spread{trials: trials, progress: c.progress()}
	for i, name := range names {
		in, closeLog, err := openLog(name, c.stdin)
		if err != nil {
			return 0, err
		}
		defer closeLog()
		s.logs = append(s.logs, &orderedLog{place: i, read: r.next(name, in), most: maxHeld})
	}
	if err := merge(ctx, slices.Clone(s.logs), s.add); err != nil {
		return 0, err
	}
	s.flush()
	s.progress(s.requests, true)
	code := exitOK
	if trials[len(trials)-1].refused > 0 {
		code = exitNo
	}
	if s.requests == 0 {
		return 0, errors.New(strings.Join(append([]string{strings.Join(names, ", ") + ": there is no request"}, r.reasons...), "; "))
	}
	return code, c.report(r, s, *top, secret)
}

func (c *call) newTrial(ctx context.Context, file, name string, secret []byte) (*trial, error) {
	d, err := c.must(file)
	if err != nil {
		return nil, err
	}
	text, _ := d.MarshalJSON()
	if len(secret) == 0 {
		secret = []byte("none, so that no key has the hash of an override")
	}
	book, err := limits.Open(ctx, anyStore{}, anySlots{}, limits.Bytes(text), limits.Config{Secret: secret, Every: time.Hour})
	if err != nil {
		return nil, err
	}
	names := d.Limits()
	switch {
	case name == "" && len(names) == 1:
		name = names[0]
	case name == "":
		return nil, fmt.Errorf("%s has %d limits: choose one with -limit: %s", file, len(names), strings.Join(names, ", "))
	}
	limit, err := book.Limit(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &trial{file: file, limit: limit, replay: replay{cells: make(map[cell][]step.Variant)}, keys: make(map[string]*tally)}, nil
}

// A spread gives requests of one whole second times within it: they did not come at once.
type spread struct {
	trials   []*trial
	logs     []*orderedLog
	progress func(requests int, done bool)

	second      []request
	requests    int
	first, last time.Time
	back        int // requests that are earlier than the one before, after all
}

// maxSecond is how many requests of a second are spread.
const maxSecond = 1 << 20

func (s *spread) add(q request) {
	s.requests++
	if s.requests == 1 || q.at.Before(s.first) {
		s.first = q.at
	}
	if q.at.Before(s.last) {
		s.back++
	} else {
		s.last = q.at
	}
	if len(s.second) > 0 && (!q.whole || !q.at.Equal(s.second[0].at) || len(s.second) == maxSecond) {
		s.flush()
	}
	s.second = append(s.second, q)
	if !q.whole {
		s.flush()
	}
	s.progress(s.requests, false)
}

// sorted returns how many requests were put in order.
func (s *spread) sorted() (n int) {
	for _, l := range s.logs {
		n += l.early
	}
	return max(n-s.back, 0)
}

// flush decides about the requests of a second.
func (s *spread) flush() {
	for i, q := range s.second {
		if n := len(s.second); n > 1 {
			q.at = q.at.Add(time.Duration(i) * time.Second / time.Duration(n))
		}
		for _, t := range s.trials {
			t.decide(q)
		}
	}
	s.second = s.second[:0]
}

// decide decides about a request.
func (t *trial) decide(q request) {
	l := t.limit.For(q.plan, q.key)
	policy, wait := t.replay.decide(l, q.key, q.at, t.mode)
	k := t.keys[q.key]
	if k == nil {
		k = &tally{Key: q.key}
		t.keys[q.key] = k
	}
	k.Requests++
	k.Plan = q.plan
	if policy == "" {
		t.admitted++
		if t.mode == step.Peek && q.cost > 0 {
			t.units = min(t.units+q.cost, step.MaxInt)
			t.uncovered = min(t.uncovered+t.replay.report(l, q.key, q.cost), step.MaxInt)
		}
	} else {
		t.refused++
		k.refuse(policy, wait, q.at)
	}
	if (t.admitted+t.refused)%forgetEvery == 0 {
		t.forget()
	}
}

func (k *tally) refuse(policy string, wait time.Duration, at time.Time) {
	if k.Refused == 0 {
		k.First, k.Policies = at, make(map[string]int)
	}
	k.Refused++
	k.Last = at
	k.Policies[policy]++
	k.longest = max(k.longest, wait)
}

// progress returns a function that tells people how far it is.
func (c *call) progress() func(requests int, done bool) {
	f, ok := c.stderr.(*os.File)
	if ok {
		info, err := f.Stat()
		ok = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	if !ok {
		return func(int, bool) {}
	}
	told := time.Now()
	shown := false
	return func(requests int, done bool) {
		switch {
		case done && shown:
			fmt.Fprint(f, "\r\x1b[K")
		case !done && requests%1000 == 0 && time.Since(told) > time.Second/2:
			told, shown = time.Now(), true
			fmt.Fprintf(f, "\r%d requests", requests)
		}
	}
}

// A jsonTrial is a trial as -json prints it.
type jsonTrial struct {
	File     string `json:"file"`
	Version  string `json:"version"`
	Admitted int    `json:"admitted"`
	Refused  int    `json:"refused"`
	Unknown  int64  `json:"unknown_plans"`
	Keys     int    `json:"keys"`
	Affected int    `json:"keys_refused"`

	// Units are those that were counted with -cost, and Uncovered those of them without room.
	Units     int64 `json:"units"`
	Uncovered int64 `json:"uncovered"`

	Top []*tally `json:"top"`
}

// report prints what the trials have shown.
func (c *call) report(r *logReader, s *spread, top int, secret []byte) error {
	all := make([]jsonTrial, 0, len(s.trials))
	for _, t := range s.trials {
		j := jsonTrial{t.file, t.limit.Book().State().Version, t.admitted, t.refused, t.limit.Unknown(), len(t.keys), 0, t.units, t.uncovered, []*tally{}}
		for _, k := range t.keys {
			if k.Refused > 0 {
				j.Affected++
				j.Top = append(j.Top, k)
			}
		}
		slices.SortFunc(j.Top, func(a, b *tally) int { return cmp.Or(b.Refused-a.Refused, cmp.Compare(a.Key, b.Key)) })
		j.Top = j.Top[:min(max(top, 0), len(j.Top))]
		for _, k := range j.Top {
			k.Longest = wait(k.longest)
			if len(secret) > 0 {
				k.Key = "hash:" + limits.Hash(secret, k.Key)[:12]
			}
		}
		all = append(all, j)
	}
	result := map[string]any{
		"requests": s.requests, "first": s.first, "last": s.last, "sorted": s.sorted(), "out_of_order": s.back,
		"lines": r.lines, "broken_lines": r.broken, "broken": append([]string{}, r.reasons...), "trials": all,
	}
	return c.print(result, func() {
		c.printf("%d requests from %s to %s\n", s.requests, s.first.Format(time.RFC3339), s.last.Format(time.RFC3339))
		if r.broken > 0 {
			c.printf("%d of %d lines are no requests and were left out: %s\n", r.broken, r.lines, strings.Join(r.reasons, "; "))
		}
		if n := s.sorted(); n > 0 {
			c.printf("%d requests were earlier than the line before, and were put in order\n", n)
		}
		if s.back > 0 {
			c.printf("%d requests are too far behind later ones to be put in order, and count as of their time: sort the log\n", s.back)
		}
		for i, t := range s.trials {
			c.printTrial(t, &all[i])
		}
	})
}

func (c *call) printTrial(t *trial, j *jsonTrial) {
	percent := func(part, whole int) string { return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(max(whole, 1))) }
	c.printf("\n%s, version %s, limit %q: %d admitted, %d refused (%s); %d of %d keys refused\n",
		j.File, j.Version, t.limit.Name(), j.Admitted, j.Refused, percent(j.Refused, j.Admitted+j.Refused), j.Affected, j.Keys)
	if t.mode == step.Peek {
		c.printf("%d units were used, %d of them beyond the limit\n", j.Units, j.Uncovered)
	}
	if j.Unknown > 0 {
		c.printf("%d requests have a plan that the document has not, and got the default\n", j.Unknown)
	}
	if len(j.Top) == 0 {
		return
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "key\tplan\trequests\trefused\tshare\tfirst\tlast\tlongest wait\tby")
	for _, k := range j.Top {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n",
			visibleIn(maxCell, k.Key), visibleIn(maxCell, k.Plan), k.Requests, k.Refused, percent(k.Refused, k.Requests),
			k.First.Format(time.DateTime), k.Last.Format(time.DateTime), k.Longest, visible(byPolicy(k.Policies)))
	}
	_ = w.Flush()
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

// byPolicy lists the policies that refused, the one that did most first.
func byPolicy(counts map[string]int) string {
	names := make([]string, 0, len(counts))
	for name := range counts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b)) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, counts[name])
	}
	return strings.Join(names, ", ")
}
