package thirdparty

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/alexedwards/scs/v2"
	"github.com/gorilla/sessions"

	"github.com/headgate/headgate/keyfuncs"
)

// userKey is the key under which an authentication puts the user into the context.
type userKey struct{}

func Example_sessions() {
	store, manager := sessions.NewFilesystemStore("", secret), scs.New()

	// gorilla/sessions; and gin-contrib/sessions and echo-contrib/session, whose stores it made
	byGorilla := keyfuncs.Session(func(r *http.Request) (string, bool) {
		s, err := store.Get(r, "session")
		return s.ID, err == nil && !s.IsNew
	})
	// alexedwards/scs, behind LoadAndSave
	bySCS := keyfuncs.Session(func(r *http.Request) (string, bool) {
		token := manager.Token(r.Context())
		return token, token != ""
	})
	// the subject of a token, where your authentication, which runs before, has put it
	bySubject := keyfuncs.Context(userKey{})

	ctx, _ := manager.Load(context.Background(), "")
	newcomer := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
	for _, key := range []keyfuncs.Func{byGorilla, bySCS, bySubject} {
		key := keyfuncs.First(key, keyfuncs.RemoteAddr()) // who has none is charged by address
		fmt.Println(key(newcomer))
	}
	// Output:
	// 1:192.0.2.1 <nil>
	// 1:192.0.2.1 <nil>
	// 1:192.0.2.1 <nil>
}
