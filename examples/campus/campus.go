package main

import (
	"crypto/rand"
	"io"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

const (
	studentLimit  = 10 // requests in any minute
	newcomerLimit = 20 // requests in any minute
	cookieLimit   = 100
	cookieLife    = 24 * time.Hour
	probation     = 10 * time.Minute
)

// addressLimit returns the ceiling of an address: 8 requests in any minute for each student,
// and all that an abuser can take, which is the limit of each cookie that it can collect,
// its own limit, and that of the newcomers.
func addressLimit(students int) int64 {
	return int64(8*students + cookieLimit*studentLimit + studentLimit + newcomerLimit)
}

// A campus is one handler behind either of two guards.
type campus struct {
	cookie      *keyfuncs.SignedCookie
	withCookies http.Handler // limited by student, newcomers, cookies and address
	addressOnly http.Handler // limited by address
}

func newCampus(store core.Store, address keyfuncs.Func, students int) (*campus, error) {
	secret := make([]byte, 32) // a real one is configured, the same on all servers
	rand.Read(secret)
	cookie, err := keyfuncs.NewSignedCookie("__Host-student", cookieLife, secret)
	if err != nil {
		return nil, err
	}
	perStudent, err := core.New(store, "student", core.SlidingLog(core.PerMinute(studentLimit)))
	if err != nil {
		return nil, err
	}
	newcomers, err := core.New(store, "newcomers", core.SlidingLog(core.PerMinute(newcomerLimit)))
	if err != nil {
		return nil, err
	}
	cookies, err := core.New(store, "cookies", core.SlidingLog(core.Rate{Events: cookieLimit, Per: cookieLife}))
	if err != nil {
		return nil, err
	}
	perAddress, err := core.New(store, "address", core.SlidingWindow(core.PerMinute(addressLimit(students))))
	if err != nil {
		return nil, err
	}

	student := cookie.OlderThan(probation)
	together, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{
		{Limiter: perStudent, Key: student, Cost: keyfuncs.CostIf(student)},
		{Limiter: newcomers, Key: address, Cost: keyfuncs.CostUnless(student)},
		{Limiter: cookies, Key: address, Cost: keyfuncs.CostUnless(cookie.Key)},
		{Limiter: perAddress, Key: address},
	}})
	if err != nil {
		return nil, err
	}
	alone, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{Limiter: perAddress, Key: address}}})
	if err != nil {
		return nil, err
	}
	handler := cookie.Handler(http.HandlerFunc(hello)) // behind the guard: a refused client gets no cookie
	return &campus{cookie, together.Handler(handler), alone.Handler(handler)}, nil
}

// signedIn returns the cookie for a student who has just signed in. It is established at
// once, and is not one of those that newcomers of an address share. A service that uses this
// limits how often an account may sign in, or one account collects cookies.
func (c *campus) signedIn() *http.Cookie { return c.cookie.New(time.Now().Add(-probation)) }

func hello(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "hello\n")
}

// routes returns the handler of the server after the simulation.
func routes(c *campus, served results) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /api/hello", c.withCookies)
	mux.Handle("GET /{$}", page(picture(served)))
	return mux
}
