//! What a line that begins with `/` asks for.

/// A command, with what follows it.
#[derive(Debug, PartialEq)]
pub(super) enum Command<'t> {
    Help,
    System(&'t str),
    Set(&'t str),
    Save(&'t str),
    Load(&'t str),
    Undo,
    Retry,
    Clear,
    History,
    Stats,
    Quit,
}

/// Name, what follows it, what it does.
const TABLE: [(&str, &str, &str); 11] = [
    ("help", "", "tells this"),
    ("system", "TEXT", "sets the system message; `/system` alone tells it, `/system none` takes it away"),
    ("set", "NAME VALUE", "sets how answers are generated; `/set` alone tells what there is"),
    ("save", "FILE", "writes the conversation to a file, with what was computed of it"),
    ("load", "FILE", "goes on with a saved conversation in place of this one"),
    ("undo", "", "takes back the last question and its answer"),
    ("retry", "", "answers the last question again"),
    ("clear", "", "forgets everything but the system message"),
    ("history", "", "tells the conversation"),
    ("stats", "", "tells how full the context is, and what was computed"),
    ("quit", "", "leaves, as Ctrl-D does"),
];

/// All commands, for people.
pub(super) fn help() -> String {
    let line =
        |(name, what, does): &(&str, &str, &str)| format!("  {:18} {does}\n", format!("/{name} {what}"));
    let commands: String = TABLE.iter().map(line).collect();
    format!(
        "{commands}  //TEXT             says a text that begins with /\n\
         A message of several lines stands between \"\"\" and \"\"\", or its lines end with \\ but for the last."
    )
}

/// The command of a line; `None` where it is none, and what is wrong with it.
pub(super) fn parse(line: &str) -> Option<Result<Command<'_>, String>> {
    let line = line.trim().strip_prefix('/').filter(|rest| !rest.starts_with('/'))?;
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let command = match name {
        "help" | "?" => Command::Help,
        "system" => return Some(Ok(Command::System(rest))),
        "set" => return Some(Ok(Command::Set(rest))),
        "save" | "load" if rest.is_empty() => {
            return Some(Err(format!("/{name} needs the name of a file")));
        }
        "save" => return Some(Ok(Command::Save(rest))),
        "load" => return Some(Ok(Command::Load(rest))),
        "undo" => Command::Undo,
        "retry" => Command::Retry,
        "clear" => Command::Clear,
        "history" => Command::History,
        "stats" => Command::Stats,
        "quit" | "exit" | "bye" => Command::Quit,
        _ => {
            let names = TABLE.map(|(name, ..)| format!("/{name}")).join(", ");
            return Some(Err(format!("there is no command /{name}; there are {names}")));
        }
    };
    Some(if rest.is_empty() { Ok(command) } else { Err(format!("/{name} takes nothing behind it")) })
}

/// The text of a line that is no command.
pub(super) fn text(line: &str) -> &str {
    if line.trim_start().starts_with("//") { &line.trim_start()[1..] } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_text() {
        assert_eq!(
            (parse("hello /help"), parse("//etc"), text("//etc"), text(" a")),
            (None, None, "/etc", " a")
        );
        assert_eq!(parse(" /help "), Some(Ok(Command::Help)));
        assert_eq!(parse("/system Be  brief."), Some(Ok(Command::System("Be  brief."))));
        assert_eq!(parse("/save a file"), Some(Ok(Command::Save("a file"))));
        for (line, problem) in [
            ("/", "there is no command /"),
            ("/hepl", "/help, /system, /set"),
            ("/load ", "needs the name of a file"),
            ("/undo 3", "/undo takes nothing"),
        ] {
            let error = parse(line).unwrap().unwrap_err();
            assert!(error.contains(problem), "{line}: {error}");
        }
    }

    #[test]
    fn every_command_of_the_help_is_one() {
        for (name, what, _) in TABLE {
            let line = format!("/{name} {what}");
            assert!(matches!(parse(&line), Some(Ok(_))), "{line}");
            assert!(help().contains(line.trim()));
        }
    }
}
