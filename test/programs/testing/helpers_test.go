package shop

import (
	"net/http/httptest"
	"testing"

	"github.com/headgate/headgate/core"
)

// client returns a function that sends a request of a user to the service.
func client(t *testing.T, store core.Store) func(user string) *httptest.ResponseRecorder {
	t.Helper()
	handler := Handler(store)
	return func(user string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", user)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
}
