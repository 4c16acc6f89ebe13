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
	studentLimit  = 10
	newcomerLimit = 20
	probation     = 10 * time.Minute
)

func addressLimit(students int) int64 {
	return int64(8*students + studentLimit + newcomerLimit)
}

// A campus is one handler behind either of two guards.
type campus struct {
	cookie      *keyfuncs.SignedCookie
	withCookies http.Handler // limited by student, newcomers and address
	addressOnly http.Handler // limited by address
}

func newCampus(store core.Store, address keyfuncs.Func, students int) (*campus, error) {
	secret := make([]byte, 32) // a real one is configured, the same on all servers
	rand.Read(secret)
	cookie, err := keyfuncs.NewSignedCookie("__Host-student", 7*24*time.Hour, secret)
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
	perAddress, err := core.New(store, "address", core.SlidingWindow(core.PerMinute(addressLimit(students))))
	if err != nil {
		return nil, err
	}

	student := cookie.OlderThan(probation)
	together, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{
		{Limiter: perStudent, Key: student, Cost: keyfuncs.CostIf(student)},
		{Limiter: newcomers, Key: address, Cost: keyfuncs.CostUnless(student)},
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
