package thirdparty

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/alexedwards/scs/v2"
	"github.com/golang-jwt/jwt/v5"
	"github.com/gorilla/sessions"
	echojwt "github.com/labstack/echo-jwt/v4"
	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func Example_sessions() {
	store, manager := sessions.NewFilesystemStore("", secret), scs.New()

	// gorilla/sessions, which gin-contrib/sessions and echo-contrib/session use
	byGorilla := keyfuncs.Session(func(r *http.Request) (string, bool) {
		s, err := store.Get(r, "session")
		return s.ID, err == nil && !s.IsNew
	})
	// alexedwards/scs: wrap the guard in manager.LoadAndSave
	bySCS := keyfuncs.Session(func(r *http.Request) (string, bool) {
		token := manager.Token(r.Context())
		return token, token != ""
	})

	for _, bySession := range []keyfuncs.Func{byGorilla, bySCS} {
		key := keyfuncs.First(bySession, keyfuncs.RemoteAddr()) // without a session: by address
		show(manager, key)
	}
	// Output:
	// 1:192.0.2.1 <nil>
	// 1:192.0.2.1 <nil>
}

// show prints the key of a request without a session.
func show(manager *scs.SessionManager, key keyfuncs.Func) {
	ctx, err := manager.Load(context.Background(), "")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(key(httptest.NewRequestWithContext(ctx, "GET", "/", nil)))
}

// The subject of a token that echo-jwt has verified.
func Example_jwt() {
	guard := apiGuard() // as in the first program

	// echo-jwt stores the verified *jwt.Token under "user".
	bySubject := func(c echo.Context) (string, error) {
		token, ok := c.Get("user").(*jwt.Token)
		if !ok {
			return "", fmt.Errorf("%w: token", keyfuncs.ErrAbsent)
		}
		return token.Claims.GetSubject()
	}
	e := echo.New()
	e.Use(echojwt.JWT(secret), echomw.LimitBy(guard, bySubject))

	askAs(e, "anna", "ben", "anna", "")
	// Output:
	// "anna": 200
	// "ben": 200
	// "anna": 429
	// "": 400
}

func apiGuard() *nethttp.Guard {
	limiter, err := core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerMinute(1)))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
	})
	if err != nil {
		log.Fatal(err)
	}
	return guard
}

// askAs sends a request with a token for each subject.
func askAs(e *echo.Echo, subjects ...string) {
	e.GET("/", func(c echo.Context) error { return c.NoContent(http.StatusOK) })
	for _, subject := range subjects {
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": subject}).SignedString(secret)
		if err != nil {
			log.Fatal(err)
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		fmt.Printf("%q: %d\n", subject, w.Code)
	}
}
