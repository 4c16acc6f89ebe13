package thirdparty

import (
	"crypto/rand"
	"flag"
	"net/http"
	"strings"
	"testing"

	ginsessions "github.com/gin-contrib/sessions"
	gincookie "github.com/gin-contrib/sessions/cookie"
	ginmemstore "github.com/gin-contrib/sessions/memstore"
	"github.com/gin-gonic/gin"
	"github.com/gorilla/sessions"
	echosession "github.com/labstack/echo-contrib/session"
	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	// Goroutines run in another order each time, so the fuzzer would spend a minute on each input in vain.
	if err := flag.Set("test.fuzzminimizetime", "1x"); err != nil {
		panic(err)
	}
	m.Run()
}

var secret = []byte(strings.Repeat("k", 32))

// byID and byValue are the two ways to name a session of the gorilla kind.
func byID(s *sessions.Session) string { return s.ID }

func byValue(s *sessions.Session) string {
	id, _ := s.Values["id"].(string)
	return id
}

func gorillaKey(store sessions.Store, id func(*sessions.Session) string) keyfuncs.Func {
	return keyfuncs.Hashed(keyfuncs.From(func(r *http.Request) (string, bool) {
		s, err := store.Get(r, "session")
		return id(s), err == nil && !s.IsNew
	}))
}

func charging(key keyfuncs.Func) *nethttp.Guard {
	return nethttp.Limit(new(core.MemoryStore), "api", key, core.Unlimited())
}

func TestGinContrib(t *testing.T) {
	for name, test := range map[string]struct {
		store ginsessions.Store
		id    func(*sessions.Session) string
	}{
		"on the server": {ginmemstore.NewStore(secret), byID},
		"in the cookie": {gincookie.NewStore(secret), byValue},
	} {
		t.Run(name, func(t *testing.T) {
			key := gorillaKey(test.store, test.id)
			r := gin.New()
			r.Use(ginsessions.Sessions("session", test.store), ginmw.Middleware(charging(ginmw.Key(func(c *gin.Context) (string, error) {
				k, err := key(c.Request)
				c.Set("key", k)
				c.Set("error", err)
				return "any", nil
			}))))
			r.GET("/*path", func(c *gin.Context) {
				if c.Request.URL.Path == "/begin" {
					s := ginsessions.Default(c)
					s.Set("id", rand.Text())
					if err := s.Save(); err != nil {
						t.Error(err)
					}
				}
				err, _ := c.Value("error").(error)
				say(c.Writer, c.GetString("key"), err)
			})
			story(t, r)
		})
	}
}

func TestEchoContrib(t *testing.T) {
	for name, test := range map[string]struct {
		store sessions.Store
		id    func(*sessions.Session) string
	}{
		"on the server": {sessions.NewFilesystemStore(t.TempDir(), secret), byID},
		"in the cookie": {sessions.NewCookieStore(secret), byValue},
	} {
		t.Run(name, func(t *testing.T) {
			key := gorillaKey(test.store, test.id)
			e := echo.New()
			e.Use(echosession.Middleware(test.store), echomw.Middleware(charging(echomw.Key(func(c echo.Context) (string, error) {
				k, err := key(c.Request())
				c.Set("key", k)
				c.Set("error", err)
				return "any", nil
			}))))
			e.GET("/*", func(c echo.Context) error {
				if c.Request().URL.Path == "/begin" {
					s, err := echosession.Get("session", c)
					if err != nil {
						return err
					}
					s.Values["id"] = rand.Text()
					if err := s.Save(c.Request(), c.Response()); err != nil {
						return err
					}
				}
				key, _ := c.Get("key").(string)
				err, _ := c.Get("error").(error)
				say(c.Response(), key, err)
				return nil
			})
			story(t, e)
		})
	}
}
