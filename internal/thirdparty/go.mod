module github.com/headgate/headgate/internal/thirdparty

go 1.25.0

require (
	github.com/alexedwards/scs/v2 v2.9.0
	github.com/gorilla/sessions v1.4.0
	github.com/headgate/headgate v0.0.0
)

require github.com/gorilla/securecookie v1.1.2 // indirect

replace github.com/headgate/headgate => ../../
