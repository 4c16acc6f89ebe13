// Package thirdparty tests what the documentation says about libraries of others, which
// the module that ships does not require.
package thirdparty

import (
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alexedwards/scs/v2"
	"github.com/gorilla/sessions"

	"github.com/headgate/headgate/keyfuncs"
)

// client keeps the cookie of the last response, and what its request was charged as.
type client struct {
	handler http.Handler
	cookie  string
}

// ask sends a request and returns the body of the response, which is the key or error.
func (c *client) ask(path string) string {
	r := httptest.NewRequest("GET", path, nil)
	if c.cookie != "" {
		r.Header.Set("Cookie", "session="+c.cookie)
	}
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, r)
	for _, cookie := range w.Result().Cookies() {
		c.cookie = cookie.Value
	}
	return w.Body.String()
}

const absent = "absent"

// say writes the key of a request, as it is when the guard asks: before the handler.
func say(w http.ResponseWriter, key string, err error) {
	switch {
	case errors.Is(err, keyfuncs.ErrAbsent):
		key = absent
	case err != nil:
		key = err.Error()
	}
	io.WriteString(w, key)
}

// The story of a client under any library.
func story(t *testing.T, handler http.Handler) {
	t.Helper()
	ann, ben := &client{handler: handler}, &client{handler: handler}
	if got := ann.ask("/"); got != absent {
		t.Errorf("before the session: %q", got)
	}
	if got := ann.ask("/begin"); got != absent || ann.cookie == "" {
		t.Errorf("the request that begins it: %q, cookie %q", got, ann.cookie)
	}
	key := ann.ask("/")
	if len(key) != 22 || ann.ask("/") != key || strings.Contains(ann.cookie, key) {
		t.Errorf("with the session: %q, then %q", key, ann.ask("/"))
	}
	ben.ask("/begin")
	if got := ben.ask("/"); len(got) != 22 || got == key {
		t.Errorf("another session: %q, and %q", got, key)
	}
	for _, forged := range []string{"forged", ann.cookie[1:], ann.cookie + "A", strings.ToUpper(ann.cookie)} {
		mallory := &client{handler: handler, cookie: forged}
		if got := mallory.ask("/"); got != absent {
			t.Errorf("a forged cookie: %q", got)
		}
	}
}

func TestSCS(t *testing.T) {
	manager := scs.New()
	key := keyfuncs.Hashed(keyfuncs.From(func(r *http.Request) (string, bool) {
		token := manager.Token(r.Context())
		return token, token != ""
	}))
	handler := manager.LoadAndSave(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, err := key(r)
		switch r.URL.Path {
		case "/begin":
			manager.Put(r.Context(), "user", "someone")
		case "/end":
			if err := manager.Destroy(r.Context()); err != nil {
				t.Error(err)
			}
		}
		say(w, k, err)
	}))
	story(t, handler)

	c := &client{handler: handler}
	c.ask("/begin")
	old := c.cookie
	c.ask("/end")
	c.cookie = old
	if got := c.ask("/"); got != absent {
		t.Errorf("after the end: %q", got)
	}
}

func gorilla(t *testing.T, store sessions.Store, id func(*sessions.Session) string) http.Handler {
	t.Helper()
	key := keyfuncs.Hashed(keyfuncs.From(func(r *http.Request) (string, bool) {
		s, err := store.Get(r, "session")
		return id(s), err == nil && !s.IsNew
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, err := key(r)
		if r.URL.Path == "/begin" {
			s, err := store.Get(r, "session")
			if err != nil {
				t.Error(err)
			}
			s.Values["id"] = rand.Text()
			if err := s.Save(r, w); err != nil {
				t.Error(err)
			}
		}
		say(w, k, err)
	})
}

func TestGorillaOnTheServer(t *testing.T) {
	folder := t.TempDir()
	store := sessions.NewFilesystemStore(folder, []byte(strings.Repeat("k", 32)))
	handler := gorilla(t, store, func(s *sessions.Session) string { return s.ID })
	story(t, handler)

	// A session that the server has forgotten, with a cookie that it did sign.
	c := &client{handler: handler}
	c.ask("/begin")
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if got := c.ask("/"); got != absent {
		t.Errorf("a forgotten session: %q", got)
	}
}

func TestGorillaInTheCookie(t *testing.T) {
	store := sessions.NewCookieStore([]byte(strings.Repeat("k", 32)))
	story(t, gorilla(t, store, func(s *sessions.Session) string {
		id, _ := s.Values["id"].(string)
		return id
	}))

	// It leaves the ID empty.
	handler := gorilla(t, store, func(s *sessions.Session) string { return s.ID })
	c := &client{handler: handler}
	c.ask("/begin")
	if got := c.ask("/"); got != absent {
		t.Errorf("by its ID: %q", got)
	}
}
