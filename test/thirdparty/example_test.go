package thirdparty

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/golang-jwt/jwt/v5"
	"github.com/gorilla/sessions"
	echojwt "github.com/labstack/echo-jwt/v4"
	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A session of gorilla/sessions, on which gin-contrib/sessions and echo-contrib/session
// are built.
func Example_gorillaSessions() {
	store := sessions.NewFilesystemStore("", secret)

	session := keyfuncs.Hashed(keyfuncs.From(func(r *http.Request) (string, bool) {
		s, err := store.Get(r, "session")
		return s.ID, err == nil && !s.IsNew
	}))
	client := keyfuncs.First(keyfuncs.Tag("session", session), keyfuncs.Tag("ip", keyfuncs.RemoteAddr()))
	limit := nethttp.Limit(new(core.MemoryStore), "client", client, core.SlidingLog(60, time.Minute))
	handler := limit.Handler(app)

	listen(handler) // http.ListenAndServe("127.0.0.1:8080", handler)
	// Output: 200 "client";r=59;t=60
}

// A session of alexedwards/scs, which LoadAndSave finds before the guard asks for it.
func Example_scs() {
	manager := scs.New()

	session := keyfuncs.Hashed(keyfuncs.From(func(r *http.Request) (string, bool) {
		token := manager.Token(r.Context())
		return token, token != ""
	}))
	client := keyfuncs.First(keyfuncs.Tag("session", session), keyfuncs.Tag("ip", keyfuncs.RemoteAddr()))
	limit := nethttp.Limit(new(core.MemoryStore), "client", client, core.SlidingLog(60, time.Minute))
	handler := manager.LoadAndSave(limit.Handler(app))

	listen(handler) // http.ListenAndServe("127.0.0.1:8080", handler)
	// Output: 200 "client";r=59;t=60
}

// The subject of a token that echo-jwt has verified.
func Example_jwt() {
	// echo-jwt stores the verified *jwt.Token under "user".
	subject := echomw.Key(func(c echo.Context) (string, error) {
		token, ok := c.Get("user").(*jwt.Token)
		if !ok {
			return "", fmt.Errorf("%w: token", keyfuncs.ErrAbsent)
		}
		return token.Claims.GetSubject()
	})
	limit := nethttp.Limit(new(core.MemoryStore), "subject", subject, core.SlidingLog(60, time.Minute))
	e := echo.New()
	e.Use(echojwt.JWT(secret), echomw.Middleware(limit))

	listen(e) // e.Start("127.0.0.1:8080")
	// Output:
	// 200 "subject";r=59;t=60
	// 200 "subject";r=59;t=60
	// 200 "subject";r=58;t=60
	// 400
}

var app = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// listen sends a request, or to Echo requests with the tokens of several subjects.
func listen(h http.Handler) {
	subjects := []string{""}
	if e, ok := h.(*echo.Echo); ok {
		e.GET("/", func(c echo.Context) error { return c.NoContent(http.StatusOK) })
		subjects = []string{"anna", "ben", "anna", ""}
	}
	for _, subject := range subjects {
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": subject}).SignedString(secret)
		if err != nil {
			log.Fatal(err)
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
}
