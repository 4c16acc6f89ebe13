// Login limits wrong passwords: 10 in a quarter of an hour from an address, and 5 for an account.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// account is a key function: it returns the account that a request wants to sign in to.
func account(r *http.Request) (string, error) {
	name := strings.ToLower(r.PostFormValue("user"))
	if name == "" {
		return "", keyfuncs.ErrAbsent // the guard answers 400
	}
	return name, nil
}

func login(w http.ResponseWriter, r *http.Request) {
	if r.PostFormValue("password") != "open sesame" {
		http.Error(w, "wrong password", http.StatusUnauthorized)
		return
	}
	fmt.Fprintln(w, "welcome")
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	flag.Parse()

	store := memstore.New(memstore.Config{})
	quarter := func(n int64) core.Policy { return core.SlidingLog(core.Rate{Events: n, Per: 15 * time.Minute}) }
	guard := core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{
		// An attempt is charged before the password is read, and given back if the answer is 2xx or 3xx.
		{Limiter: core.Must(core.New(store, "address", quarter(10))), Key: keyfuncs.RemoteAddr(), Settle: nethttp.FailuresOnly},
		{Limiter: core.Must(core.New(store, "account", quarter(5))), Key: account, Settle: nethttp.FailuresOnly},
	}}))
	http.Handle("POST /login", http.MaxBytesHandler(guard.Handler(http.HandlerFunc(login)), 4<<10))
	log.Printf("listening on http://%s/", *addr)
	log.Fatal(http.ListenAndServe(*addr, nil))
}
