package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/core"
)

const (
	asks    = 6 // requests of each student
	workers = 8 // requests in progress at once
)

// A trick is what an abuser does with its cookie.
type trick int

const (
	own    trick = iota // sends its own
	drop                // sends none
	rotate              // sends the last one that it was given, once
	forge               // sends a forged one
)

var tricks = []trick{own, drop, rotate, forge}

// A result is how many requests were served.
type result struct {
	students []int // for each student, in ascending order
	abuser   map[trick]int
	took     time.Duration
}

type results struct {
	abuserAsked   int
	without, with result
}

// simulate serves a campus twice: without session keys and with them.
func simulate(ctx context.Context, connect connection, store core.Store, students int) (served results, err error) {
	served.abuserAsked = 2 * asks * students
	served.without, err = crowd(ctx, connect, store, students, tricks, func(c *campus) http.Handler { return c.addressOnly })
	if err == nil {
		served.with, err = crowd(ctx, connect, store, students, tricks, func(c *campus) http.Handler { return c.withCookies })
	}
	return served, err
}

// A connection returns a transport and a URL for requests to the handler, until end is
// called.
type connection func(http.Handler) (transport http.RoundTripper, url string, end func(), err error)

// overTCP is the connection to a server that listens on this machine.
func overTCP(handler http.Handler) (transport http.RoundTripper, url string, end func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(listener)
	t := &http.Transport{MaxIdleConnsPerHost: workers}
	return t, "http://" + listener.Addr().String() + "/", func() { server.Close(); t.CloseIdleConnections() }, nil
}

// crowd sends the requests of all students, and of an abuser that uses the tricks in turn,
// in one random order.
func crowd(ctx context.Context, connect connection, store core.Store, students int, tricks []trick, choose func(*campus) http.Handler) (result, error) {
	address := rand.Text() // the same for all, and new for each run
	c, err := newCampus(store, func(*http.Request) (string, error) { return address, nil }, students)
	if err != nil {
		return result{}, err
	}
	transport, url, end, err := connect(choose(c))
	if err != nil {
		return result{}, err
	}
	defer end()
	ask := client(transport, url)

	abuser := newAbuser(c, tricks)
	cookies := make([]*http.Cookie, students)
	served := make([]atomic.Int64, students)
	var order []int // of students; the abuser is number -1
	for i := range students {
		cookies[i] = c.signedIn()
		order = append(order, slices.Repeat([]int{i, -1, -1}, asks)...)
	}
	mathrand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })

	begin := time.Now()
	err = each(ctx, order, func(who int) error {
		if who < 0 {
			return abuser.ask(ctx, ask)
		}
		ok, _, err := ask(ctx, cookies[who])
		if ok {
			served[who].Add(1)
		}
		return err
	})
	r := result{abuser: abuser.served, took: time.Since(begin)}
	for i := range served {
		r.students = append(r.students, int(served[i].Load()))
	}
	slices.Sort(r.students)
	return r, err
}

// each calls f for all, several at a time, until one call returns an error.
func each(ctx context.Context, all []int, f func(int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(all) {
					return
				}
				if err := f(all[i]); err != nil {
					cancel(err)
				}
			}
		})
	}
	wait.Wait()
	return context.Cause(ctx)
}

// An asker sends a request with a cookie, or none if it is nil, and returns whether it was
// served, and the cookie that the response sets, if any.
type asker func(context.Context, *http.Cookie) (ok bool, given *http.Cookie, err error)

func client(transport http.RoundTripper, url string) asker {
	c := &http.Client{Transport: transport}
	return func(ctx context.Context, cookie *http.Cookie) (bool, *http.Cookie, error) {
		request, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			return false, nil, err
		}
		if cookie != nil {
			request.AddCookie(cookie)
		}
		response, err := c.Do(request)
		if err != nil {
			return false, nil, err
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return false, nil, err
		}
		var given *http.Cookie
		if set := response.Cookies(); len(set) > 0 {
			given = set[0]
		}
		switch response.StatusCode {
		case http.StatusOK:
			return true, given, nil
		case http.StatusTooManyRequests:
			return false, nil, nil
		default:
			return false, nil, fmt.Errorf("a student got the status %s", response.Status)
		}
	}
}

type abuser struct {
	own    *http.Cookie
	tricks []trick

	mu     sync.Mutex
	asked  int
	given  *http.Cookie
	served map[trick]int
}

func newAbuser(c *campus, tricks []trick) *abuser {
	return &abuser{own: c.signedIn(), tricks: tricks, served: make(map[trick]int)}
}

func (a *abuser) ask(ctx context.Context, ask asker) error {
	trick, cookie := a.next()
	ok, given, err := ask(ctx, cookie)
	a.mu.Lock()
	defer a.mu.Unlock()
	if given != nil {
		a.given = given
	}
	if ok {
		a.served[trick]++
	}
	return err
}

func (a *abuser) next() (trick, *http.Cookie) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.tricks[a.asked%len(a.tricks)]
	a.asked++
	switch t {
	case own:
		return t, a.own
	case rotate:
		cookie := a.given
		a.given = nil
		return t, cookie
	case forge:
		forged := *a.own
		forged.Value = rand.Text() + rand.Text() + rand.Text()[:24]
		return t, &forged
	default:
		return t, nil
	}
}

func (r result) abuserServed() int {
	return r.abuser[own] + r.abuser[drop] + r.abuser[rotate] + r.abuser[forge]
}

func (r result) min() int    { return r.students[0] }
func (r result) median() int { return r.students[len(r.students)/2] }
func (r result) max() int    { return r.students[len(r.students)-1] }

// report prints the numbers.
func report(w io.Writer, served results) {
	fmt.Fprintf(w, "%d students behind one address sent %d requests each; an abuser among them sent %d.\n\n",
		len(served.with.students), asks, served.abuserAsked)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name string, of func(result) int) {
		fmt.Fprintf(t, "%s\t%d\t%d\t\n", name, of(served.without), of(served.with))
	}
	fmt.Fprint(t, "requests served\twithout session keys\twith session keys\t\n")
	row("a student, at least", result.min)
	row("median", result.median)
	row("at most", result.max)
	row("the abuser", result.abuserServed)
	row("with its own cookie", func(r result) int { return r.abuser[own] })
	row("without", func(r result) int { return r.abuser[drop] })
	row("with new ones", func(r result) int { return r.abuser[rotate] })
	row("with forged ones", func(r result) int { return r.abuser[forge] })
	t.Flush()
	fmt.Fprintf(w, "\n%d requests took %v without session keys and %v with them\n", asks*len(served.with.students)+served.abuserAsked,
		served.without.took.Round(time.Millisecond), served.with.took.Round(time.Millisecond))
}
