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

	store := new(core.MemoryStore)
	byAddress := core.NewLimiter(store, "address", core.SlidingLog(10, 15*time.Minute))
	byAccount := core.NewLimiter(store, "account", core.SlidingLog(5, 15*time.Minute))
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{
		// An attempt is charged before the password is read, and given back if the answer is 2xx or 3xx.
		{Limiter: byAddress, Key: keyfuncs.RemoteAddr(), Settle: nethttp.FailuresOnly},
		{Limiter: byAccount, Key: account, Settle: nethttp.FailuresOnly},
	}})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /login", http.MaxBytesHandler(guard.Handler(http.HandlerFunc(login)), 4<<10))
	log.Printf("listening on http://%s/", *addr)
	log.Fatal(http.ListenAndServe(*addr, nil))
}
