package main

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"github.com/gorilla/websocket"
	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/websocketmw/gorillaws"
)

// A user is what authenticate stores. Its String is its key.
type user struct {
	name string
	gold bool
}

func (u user) String() string { return u.name }

// users by token. Real tokens are long and random, so that they cannot be guessed.
var users = map[string]user{"token-of-anna": {name: "anna", gold: true}, "token-of-ben": {name: "ben"}}

// authenticate finds out who the user is. Other requests are charged to their address.
func authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		token, _ := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
		if u, ok := users[token]; ok {
			c.Set("user", u)
		}
		return next(c)
	}
}

func hello(c echo.Context) error {
	u, _ := c.Get("user").(user)
	return c.String(http.StatusOK, fmt.Sprintf("hello, %s\n", cmp.Or(u.name, "stranger")))
}

func login(c echo.Context) error {
	if c.FormValue("password") != "open sesame" {
		return echo.ErrUnauthorized
	}
	return c.String(http.StatusOK, "come in\n")
}

// repeat sends back what the client sends.
var repeat = echo.WrapHandler(gorillaws.Upgrade(nil, func(conn *websocket.Conn, _ *http.Request) {
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil {
			return
		}
		if err := conn.WriteMessage(kind, message); err != nil {
			return
		}
	}
}))

func index(c echo.Context) error {
	return c.String(http.StatusOK, fmt.Sprintf(`An API with Echo. In any minute, /api/hello admits 10 requests of each user, 100 of one with the
gold plan, and 10 of each address that has not signed in; /login 3 wrong passwords of an address
in any hour; /api/echo 3 open WebSockets of each user. Try

	curl -i http://%[1]s/api/hello
	curl -i -H 'Authorization: Bearer token-of-anna' http://%[1]s/api/hello
	curl -i -d 'password=open sesame' http://%[1]s/login
`, c.Request().Host))
}
