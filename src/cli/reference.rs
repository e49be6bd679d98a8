//! `docs/reference/commands.md`, from the definition of the command line.

use std::fmt::Write as _;

use clap::Command;

use crate::reference::{check, row};

#[test]
fn the_reference_of_commands_is_what_the_code_says() {
    let mut definition = super::definition();
    definition.build();
    let mut page = String::from(
        "# Commands\n\nGenerated from the code. Exit codes: 0 done; 1 failed; 2 usage or configuration; 3 refused by \
         a safety check; 4 not found or lost to someone else. Results go to stdout, logs and progress to stderr.\n\n\
         ## Options of every command\n\n",
    );
    arguments(&mut page, &definition, Which::Global);
    for command in definition.get_subcommands().filter(|command| command.get_name() != "help") {
        describe(&mut page, command, "reprise");
    }
    check("commands.md", &page);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Global,
    Own,
}

fn describe(page: &mut String, command: &Command, parent: &str) {
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let subcommands: Vec<&Command> =
        command.get_subcommands().filter(|command| command.get_name() != "help").collect();
    if subcommands.is_empty() {
        write!(page, "## `{name}`\n\n{about}.\n\n").expect("a String takes everything");
        arguments(page, command, Which::Own);
    }
    for subcommand in subcommands {
        describe(page, subcommand, &name);
    }
}

fn arguments(page: &mut String, command: &Command, which: Which) {
    let mut rows = String::new();
    for argument in command.get_arguments() {
        let global = argument.is_global_set();
        if global != (which == Which::Global) || matches!(argument.get_id().as_str(), "help" | "version") {
            continue;
        }
        let values: Vec<String> = argument
            .get_value_names()
            .filter(|_| argument.get_action().takes_values())
            .into_iter()
            .flatten()
            .map(|name| format!("<{name}>"))
            .collect();
        let name = match argument.get_long() {
            Some(long) if values.is_empty() => format!("`--{long}`"),
            Some(long) => format!("`--{long} {}`", values.join(" ")),
            None => format!("`{}`", values.join(" ")),
        };
        let defaults: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = if argument.get_action().takes_values() { defaults.join(", ") } else { String::new() };
        let choices: Vec<String> = argument
            .get_possible_values()
            .iter()
            .filter(|_| argument.get_action().takes_values())
            .map(|value| value.get_name().to_owned())
            .collect();
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let help = if choices.is_empty() { help } else { format!("{help}. One of: {}", choices.join(", ")) };
        let required = if argument.is_required_set() { "required" } else { default.as_str() };
        rows += &row(&[&name, required, &help]);
    }
    if !rows.is_empty() {
        writeln!(page, "{}{}{rows}", row(&["argument", "default", "meaning"]), row(&["---", "---", "---"]))
            .expect("a String takes everything");
    }
}
